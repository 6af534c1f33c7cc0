"""Cases: training configurations in one JSON format, as `predict --cases` and `validate` read them.

Null means "not known": the runtime preset's default is taken and named in the answer's `assumptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from foretrain.cluster.cluster import Cluster
from foretrain.errors import CaseError, ForetrainError, InputError
from foretrain.forecast import Question, answer
from foretrain.model.case import as_trained, model_from_case
from foretrain.model.graph import Model
from foretrain.model.optimizer import optimizer, optimizers
from foretrain.model.precision import precision
from foretrain.model.workload import Workload
from foretrain.plan.from_case import (
    KNOWN,
    accumulated,
    is_fully_sharded,
    recompute_from,
    split_from,
    unknown_words,
)
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words
from foretrain.runtime import Runtime
from foretrain.runtime.from_case import (
    as_released,
    is_known,
    runtime_from_case,
    spelled,
    task_of,
    unknown_options,
)

# letters and digits alone; of zero-bubble schedules the one that is here stands for all
_SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved": "interleaved",
    "interleaved1f1b": "interleaved",
    "zbh1": "zb-h1",
    "zbv": "zb-h1",
    "zbvzerobubble": "zb-h1",
    "zerobubble": "zb-h1",
    "dualpipe": "zb-h1",
    "dualpipev": "zb-h1",
}
_AS_THE_DEVICE_HAS_IT = (None, "auto", "fused", "te", "transformer_engine")
_SINCE_HOPPER = ("hopper", "blackwell", "blackwell-ultra")

MASKED = 0.15  # share of tokens that BERT masks (Devlin et al. 2018)


def question_from_case(case: Mapping[str, Any]) -> Question:
    """The question a case asks. All that had to be filled in is listed in its assumptions."""
    if not isinstance(case, Mapping):
        raise CaseError(f"a case is a JSON object, found {type(case).__name__}.")
    missing = [key for key in ("model", "cluster") if not isinstance(case.get(key), Mapping)]
    if missing:
        raise CaseError(f"case {case.get('id', '?')!r}: missing {' and '.join(missing)}.")
    return _Reader(case).question()


def predict_cases(
    cases: Iterable[Mapping[str, Any]], progress: Callable[[int], None] | None = None
) -> Iterator[dict[str, Any]]:
    """One document per case, in order; a bad case gives `{"id", "error"}` and never stops the rest."""
    for number, case in enumerate(cases, start=1):
        yield predict_case(case)
        if progress is not None:
            progress(number)


def predict_case(case: Mapping[str, Any]) -> dict[str, Any]:
    """The prediction document of one case, or its error document."""
    name = str(case.get("id", "")) if isinstance(case, Mapping) else ""
    try:
        return answer(question_from_case(case)).to_dict(in_full=False)
    except ForetrainError as error:
        return {"id": name, "error": {"kind": type(error).__name__, "message": str(error)}}
    except Exception as error:  # one broken case must not cost the others their answers
        message = f"internal error: {type(error).__name__}: {error}"
        return {"id": name, "error": {"kind": "Bug", "message": message}}


class _Reader:
    """Reads one case while noting what it assumes."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.case = case
        self.options = _mapping(case, "runtime_options")
        self.plan = _mapping(case, "plan")
        self.batch = _mapping(case, "batch")
        self.assumptions: list[str] = []
        self.warnings: list[str] = []

    def question(self) -> Question:
        case = self.case
        cluster = self._cluster()
        stack = self._stack(cluster)
        model = self._model(stack)
        words = self._words(cluster, stack, model)
        micro, total = self._batch(words, stack)
        plan = Plan.of(words, devices=cluster.device_count, runtime=stack, micro_batch=micro)
        workload = Workload(
            model=model,
            global_batch=total,
            seq_len=model.seq_len,
            precision=precision(self._precision()),
            optimizer=optimizer(self._optimizer()),
        )
        return Question(
            workload,
            cluster,
            plan,
            stack,
            id=str(case.get("id", "")),
            assumptions=tuple(self.assumptions),
            warnings=tuple(self.warnings),
            is_runtime_known=is_known(case.get("runtime")),
        )

    def _stack(self, cluster: Cluster) -> Runtime:
        """The stack as these devices run it. Where the case leaves attention open: fused kernels are for 16-bit
        numbers on devices of Ampere's time and later (FlashAttention README), those that know bf16."""
        name, options = self.case.get("runtime"), self.options
        stack, assumed, warned = runtime_from_case(name, options)
        stated = spelled(options).get("attention")
        is_open = stated is None and stack.attention != "unfused"
        is_able = all(device.peak("bf16") for device in cluster.devices)
        if is_open and not (is_able and self.case.get("precision") not in ("fp32", "tf32")):
            stack, assumed, warned = runtime_from_case(name, {**options, "attention": "unfused"})
            assumed.append(
                "attention: unfused, for fused kernels need 16 bits and a device with bf16."
            )
        elif (
            stated in _AS_THE_DEVICE_HAS_IT
            and stack.attention_since_hopper
            and stack.attention != "unfused"
            and all(device.architecture in _SINCE_HOPPER for device in cluster.devices)
        ):
            stack = replace(stack, attention=stack.attention_since_hopper)
            assumed.append(f"attention: {stack.attention}, as {stack.name} has it since Hopper.")
        kinds = {device.architecture for device in cluster.devices}
        stack, said = as_released(stack, options, kinds, self.case["model"])
        self.assumptions += [*assumed, *said]
        self.warnings += [*warned, *unknown_options(options, KNOWN), *unknown_words(options)]
        return stack

    def _model(self, stack: Runtime) -> Model:
        length = self._length()
        predictions = self.options.get("max_predictions")
        if predictions is None and stack.gathers_masked and length:
            predictions = ceil(MASKED * length)
        described = self.case["model"]
        if not stack.has_dropout and "zoo" not in described:
            described = {"dropout": 0.0, **described}
        capacity = self.options.get("moe_capacity_factor")
        if capacity and described.get("num_experts"):
            described = {**described, "capacity_factor": max(1.0, float(capacity))}
        data, assumed = as_trained(described, length, predictions)
        model, assumed_model = model_from_case(data, length)
        self.assumptions += [*assumed, *assumed_model]
        return model

    def _length(self) -> int | None:
        """Tokens per sample, or their mean where the software sorts samples by length instead of padding them."""
        stated: int | None = self.case.get("seq_len")
        task = task_of(self.options)
        if stated is None or stated not in task:
            return stated
        self.assumptions.append(
            f"{stated} tokens at most, {task[stated]} in the mean of a sorted batch."
        )
        return task[stated]

    def _known(self, key: str, default: str) -> str:
        value = self.case.get(key)
        if value is None:
            self.assumptions.append(f"{key} not given: {default}.")
            return default
        return str(value)

    def _precision(self) -> str:
        """The case's word; 16 bits with products in 8 are said with a switch by some."""
        word = self._known("precision", "bf16")
        stated = self.options.get("float8")
        if word == "bf16" and stated not in (None, False, "none"):
            self.assumptions.append(f"precision: fp8, for float8 = {stated}.")
            return "fp8"
        return word

    def _optimizer(self) -> str:
        """The case's word, or the kind of optimizer that is in it."""
        word = self._known("optimizer", "adam")
        if word in optimizers():
            return word
        kinds = {"adagrad": "adagrad", "adam": "adamw", "lamb": "lamb", "lion": "sgd",
                 "lars": "sgd", "sgd": "sgd"}  # fmt: skip
        found = next((kind for part, kind in kinds.items() if part in word.lower()), None)
        if found is None:
            return word
        self.warnings.append(f"optimizer {word!r} is not known; {found} stands in for it.")
        return found

    def _cluster(self) -> Cluster:
        placement = self.options.get("placement")
        cluster, assumed = Cluster.from_case(
            self.case["cluster"], placement=placement, devices=self.case.get("devices")
        )
        self.assumptions += assumed
        return cluster

    def _degree(self, name: str) -> int:
        value = self.plan.get(name)
        if value is None:
            return 1
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CaseError(f"plan.{name}: {value!r} is not a whole number of at least 1.")
        return value

    def _words(self, cluster: Cluster, stack: Runtime, model: Model) -> Words:
        defaults = dict(stack.defaults)
        tp, pp, cp, vpp = (self._degree(name) for name in ("tp", "pp", "cp", "vpp"))
        layers = self.options.get("layers_per_stage")
        words = Words(
            tp=tp,
            pp=pp,
            cp=cp,
            vpp=vpp,
            ep=self._degree("ep"),
            dp=self.plan.get("dp"),
            etp=self.options.get("expert_tensor_parallel"),
            sp=tp > 1 and self._default("sequence_parallel", defaults, "false") == "true",
            schedule=self._schedule(self.plan.get("schedule") or defaults.get("schedule"), vpp),
            recompute=self._recompute(defaults, model, pp * vpp),
            offload=("optimizer",) if self.plan.get("optimizer_offload") else (),
            layers=tuple(layers) if layers else None,
            tables="rows"
            if "model-parallel" in str(self.options.get("embedding_placement"))
            else "replicated",
        ).with_devices(cluster.device_count)
        split = split_from(
            self.options,
            self._zero(defaults),
            replicas=(words.dp or 1) * cp,
            per_node=cluster.runs[0].used,
            stages=pp,
            stack=stack,
        )
        return replace(words, zero=split.zero, shard=split.shard)

    def _zero(self, defaults: Mapping[str, str]) -> int:
        if self.plan.get("zero") is None and is_fully_sharded(self.options):
            self.assumptions.append("plan.zero not given: 3, for a switch says fully sharded.")
            return 3
        return int(self._default("zero", defaults, "0"))

    def _schedule(self, stated: object, chunks: int) -> str | None:
        if not stated:
            return None
        word = "".join(letter for letter in str(stated).lower() if letter.isalnum())
        found = _SCHEDULES.get(word)
        if found is None or (found == "zb-h1" and chunks > 1):
            found = "interleaved" if chunks > 1 else "1f1b"
            self.warnings.append(
                f"plan.schedule: {stated!r} is not known; {found} stands in for it."
            )
        return found

    def _recompute(self, defaults: Mapping[str, str], model: Model, chunks: int) -> str:
        layers = sum(block.repeat for block in model.blocks[1:-1])
        stated = self.plan.get("recompute")
        word = recompute_from(
            self.options,
            None if stated is None else str(stated).lower(),
            (op.name for _, op in model.ops()),
            layers / chunks,
        )
        if word is not None:
            return word
        latent = defaults.get("recompute_latent")
        if latent and any(op.name == "kv_up" for _, op in model.ops()):
            self.assumptions.append(f"plan.recompute not given: {latent}, as the recipes have it.")
            return latent
        return self._default("recompute", defaults, "none")

    def _default(self, key: str, defaults: Mapping[str, str], last: str) -> str:
        value = self.plan.get(key)
        if value is not None:
            return str(value).lower()
        chosen = defaults.get(key, last)
        if self.plan.get("tp", 1) == 1 and key == "sequence_parallel":
            return chosen
        self.assumptions.append(f"plan.{key} not given: {chosen}, the runtime's default.")
        return chosen

    def _micro(self, each: int, stages: int, stack: Runtime) -> int:
        """Samples of a pass: as switches say, else all that a rank has where the runtime does not accumulate."""
        count = accumulated(self.options)
        if count is not None and each % count == 0:
            return max(1, each // count)
        takes_all = dict(stack.defaults).get("micro") == "all" or not self.case.get("seq_len")
        return max(1, each) if takes_all and stages == 1 else 1

    def _batch(self, words: Words, stack: Runtime) -> tuple[int, int]:
        """Micro-batch and global batch; the latter rounded to what the plan divides."""
        replicas = words.dp or 1
        total = self.batch.get("global")
        micro = self.batch.get("micro")
        if total is None:
            accumulates = words.pp > 1 or dict(stack.defaults).get("micro") != "all"
            passes = accumulated(self.options) or (words.pp * 4 if accumulates else 1)
            total = (micro or 1) * replicas * passes
            self.assumptions.append(f"batch.global not given: {total}, {passes} micro-batches.")
        total = _whole("batch.global", total)
        if micro is None:
            micro = self._micro(total // replicas, words.pp, stack)
            self.assumptions.append(f"batch.micro not given: {micro}.")
        micro = _whole("batch.micro", micro)
        each = micro * replicas
        if total % each:
            rounded = ceil(total / each) * each
            self.warnings.append(
                f"global batch {total} is not divisible by micro-batch {micro} x {replicas} replicas:"
                f" predicted for {rounded}."
            )
            total = rounded
        return micro, total


def _mapping(case: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = case.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CaseError(f"{key}: expected an object, found {type(value).__name__}.")
    return value


def _whole(name: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}: {value!r} is not a positive whole number.")
    return value
