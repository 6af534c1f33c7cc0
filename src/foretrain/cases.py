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
from foretrain.model.optimizer import optimizer
from foretrain.model.precision import precision
from foretrain.model.workload import Workload
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words
from foretrain.runtime import Runtime
from foretrain.runtime.from_case import is_known, runtime_from_case, task_of

_SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved": "interleaved",
    "zb-h1": "zb-h1",
    "dualpipe": "zb-h1",
}

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
        stack, assumed, warned = runtime_from_case(case.get("runtime"), self.options)
        self.assumptions += assumed
        self.warnings += warned
        cluster = self._cluster()
        stack = self._attending(stack, cluster)
        model = self._model(stack)
        words = self._words(cluster.device_count, stack)
        micro, total = self._batch(words)
        plan = Plan.of(words, devices=cluster.device_count, runtime=stack, micro_batch=micro)
        workload = Workload(
            model=model,
            global_batch=total,
            seq_len=model.seq_len,
            precision=precision(self._known("precision", "bf16")),
            optimizer=optimizer(self._known("optimizer", "adam")),
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

    def _attending(self, stack: Runtime, cluster: Cluster) -> Runtime:
        """The stack as these devices run it where the case leaves attention open: fused kernels are for 16-bit
        numbers on devices of Ampere's time and later (FlashAttention README), those that know bf16."""
        is_able = all(device.peak("bf16") for device in cluster.devices)
        if self.options.get("attention") is not None or stack.attention == "unfused":
            return stack
        if is_able and self.case.get("precision") not in ("fp32", "tf32"):
            return stack
        self.assumptions.append(
            "attention: unfused, for fused kernels need 16 bits and a device with bf16."
        )
        return replace(stack, attention="unfused")

    def _model(self, stack: Runtime) -> Model:
        length = self._length()
        predictions = self.options.get("max_predictions")
        if predictions is None and stack.gathers_masked and length:
            predictions = ceil(MASKED * length)
        described = self.case["model"]
        if not stack.has_dropout and "zoo" not in described:
            described = {"dropout": 0.0, **described}
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

    def _words(self, devices: int, stack: Runtime) -> Words:
        defaults = dict(stack.defaults)
        tp, pp, cp = self._degree("tp"), self._degree("pp"), self._degree("cp")
        schedule = self.plan.get("schedule") or defaults.get("schedule")
        zero = self._default("zero", defaults, "0")
        layers = self.options.get("layers_per_stage")
        shard = self.options.get("fsdp_shard_size")
        words = Words(
            tp=tp,
            pp=pp,
            cp=cp,
            vpp=self._degree("vpp"),
            ep=self._degree("ep"),
            dp=self.plan.get("dp"),
            etp=self.options.get("expert_tensor_parallel"),
            zero=int(zero),
            sp=tp > 1 and self._default("sequence_parallel", defaults, "false") == "true",
            schedule=_SCHEDULES.get(str(schedule).lower()) if schedule else None,
            recompute=self._default("recompute", defaults, "none"),
            offload=("optimizer",) if self.plan.get("optimizer_offload") else (),
            layers=tuple(layers) if layers else None,
            tables="rows"
            if "model-parallel" in str(self.options.get("embedding_placement"))
            else "replicated",
        ).with_devices(devices)
        if shard and int(zero) and shard < (words.dp or 1) * cp:
            words = replace(words, shard=int(shard))
        return words

    def _default(self, key: str, defaults: Mapping[str, str], last: str) -> str:
        value = self.plan.get(key)
        if value is not None:
            return str(value).lower()
        chosen = defaults.get(key, last)
        if self.plan.get("tp", 1) == 1 and key == "sequence_parallel":
            return chosen
        self.assumptions.append(f"plan.{key} not given: {chosen}, the runtime's default.")
        return chosen

    def _batch(self, words: Words) -> tuple[int, int]:
        """Micro-batch and global batch; the latter rounded to what the plan divides."""
        replicas = words.dp or 1
        total = self.batch.get("global")
        micro = self.batch.get("micro")
        if total is None:
            total = (micro or 1) * replicas * words.pp * 4
            self.assumptions.append(
                f"batch.global not given: {total}, four micro-batches per stage."
            )
        total = _whole("batch.global", total)
        if micro is None:
            micro = 1 if words.pp > 1 or self.case.get("seq_len") else max(1, total // replicas)
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
