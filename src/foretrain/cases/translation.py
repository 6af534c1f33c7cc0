"""From a case, one published run in the format of `docs/cli.md`, to a request.

This only translates: what a table says in its own dialect becomes plan words, batches and switches. What it leaves open
stays open, and the one resolver fills it in as it does for everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from foretrain.case_schema import case_faults, case_keys
from foretrain.cases import contradictions
from foretrain.cases.switches import (
    LAYERS,
    MODULES,
    OF_PLANS,
    accumulated,
    is_fully_sharded,
    layers_from,
    recompute_from,
    split_from,
    unknown_words,
)
from foretrain.cluster.described import used_devices
from foretrain.errors import CaseError, did_you_mean
from foretrain.limits import shown
from foretrain.model.graph import Model
from foretrain.model.load import load_model
from foretrain.plan.schedules import called, meant, nearest
from foretrain.resolving import Request
from foretrain.resolving.stack import is_switch, labels, preset_of


def request_from_case(case: Mapping[str, Any]) -> Request:
    """What a case asks."""
    if not isinstance(case, Mapping):
        raise CaseError(f"a case must be a JSON object, got {type(case).__name__}.")
    if faults := case_faults(case):
        raise CaseError(f"case {shown(case.get('id', '?'))} cannot be read:", faults=faults)
    return _Translation(case).request()


class _Translation:
    def __init__(self, case: Mapping[str, Any]) -> None:
        self.case = case
        # a switch that stands beside the known keys counts as well
        beside = {key: case[key] for key in case if key in OF_PLANS or is_switch(key)}
        beside = {key: value for key, value in beside.items() if key not in case_keys()}
        inside = case.get("runtime_options") or {}
        self.options = {**beside, **inside}
        self.plan = case.get("plan") or {}
        self.batch = case.get("batch") or {}
        self.assumptions: list[str] = []
        self.warnings = [*contradictions.said_twice(beside, inside)]
        self.unknown = 0

    def request(self) -> Request:
        case = self.case
        on = {**case["cluster"], **self._placed()}
        devices, per_node = used_devices(on)
        replicas = self._replicas(devices)
        words = self._words(replicas, per_node)
        batch, micro = self._batches(replicas, is_open=not words)
        for line in (*unknown_words(self.options), *self._unknown_keys()):
            self._unknown(line)
        against = contradictions.of_precision(self.options, case.get("precision"))
        for line in against.values():
            self._unknown(line)
        rest = {
            key: value
            for key, value in self.options.items()
            if key not in (*OF_PLANS, *against, *labels()) and value is not None
        }
        return Request(
            case["model"],
            on,
            words or None,
            batch,
            micro,
            case.get("seq_len"),
            case.get("precision") or self.options.get("precision"),
            case.get("optimizer"),
            case.get("runtime"),
            rest,
            id=str(case.get("id", "")),
            strict=False,
            assumptions=tuple(self.assumptions),
            warnings=tuple(self.warnings),
            unknown=self.unknown,
        )

    def _unknown_keys(self) -> Iterator[str]:
        for key, value in self.case.items():
            if key not in (*case_keys(), *self.options) and value is not None:
                yield f"{key}: unknown key; ignored.{did_you_mean(key, case_keys())}"
        for part in ("plan", "batch"):
            known = case_keys(part)
            for key, value in getattr(self, part).items():
                if key not in known and value is not None:
                    near = did_you_mean(str(key), known)
                    yield f"{part}.{key} = {value}: unknown; ignored.{near}"

    def _unknown(self, line: str) -> None:
        self.unknown += 1
        self.warnings.append(line)

    def _placed(self) -> dict[str, Any]:
        given = {"placement": self.options.get("placement"), "devices": self.case.get("devices")}
        return {key: value for key, value in given.items() if value is not None}

    # --- plan words -------------------------------------------------------------------------------------

    def _replicas(self, devices: int) -> int:
        """Copies of the model: as many as are said, or as the other degrees leave room for."""
        ranks = prod(self.plan.get(name) or 1 for name in ("tp", "pp", "cp"))
        return int(self.plan.get("dp") or max(1, devices // ranks))

    def _words(self, replicas: int, per_node: int) -> dict[str, Any]:
        """The plan's words that the case says; none at all where it leaves the plan open."""
        said = {name: self.plan.get(name) for name in ("tp", "pp", "cp", "vpp", "ep", "dp")}
        tp, pp, cp, vpp = (said[name] or 1 for name in ("tp", "pp", "cp", "vpp"))
        runtime = self.case.get("runtime")
        split = split_from(
            self.options,
            self.plan.get("zero"),
            replicas=replicas * cp,
            per_node=per_node,
            stages=pp,
            # none of the stacks that are chosen by situation does
            keeps_gathered=runtime is not None
            and preset_of(runtime).sharding.keeps_gathered_in_pipelines,
        )
        if self.plan.get("zero") is None and split.zero == 3 and is_fully_sharded(self.options):
            self.assumptions.append(
                "ZeRO 3: an option requests full sharding (zero0 … zero3 in the plan)"
            )
        self.warnings += contradictions.of_sharding(
            self.options, self.plan.get("zero"), split, replicas * cp
        )
        layers = layers_from(self.options)
        self.warnings += contradictions.of_layers(self.options, layers)
        words = {
            **said,
            "etp": self.options.get("expert_tensor_parallel"),
            "zero": split.zero,
            "shard": split.shard,
            "sp": self._sequence_parallel(tp),
            "schedule": self._schedule(vpp),
            "recompute": self._recompute(pp * vpp),
            "offload": ("optimizer",) if self.plan.get("optimizer_offload") else None,
            "layers": layers,
            "tables": self._tables(),
        }
        return {name: value for name, value in words.items() if value is not None}

    def _sequence_parallel(self, tp: int) -> bool | None:
        stated = self.plan.get("sequence_parallel")
        return None if stated is None else bool(stated) and tp > 1

    def _tables(self) -> str | None:
        stated = self.options.get("embedding_placement")
        if stated is None:
            return None
        return "rows" if "model-parallel" in str(stated) else "replicated"

    def _schedule(self, chunks: int) -> str | None:
        stated, named = self.plan.get("schedule"), self.options.get("schedule_name")
        if stated and named and _letters(stated) != _letters(named):
            self.warnings.append(
                f"runtime_options.schedule_name = {named} contradicts plan.schedule = {stated}; "
                f"{stated} is used: the plan is the first word."
            )
        path = "plan.schedule" if stated else "runtime_options.schedule_name"
        stated = stated or named
        if not stated:
            return None
        schedule = called(str(stated))
        if schedule is not None:
            kind, chunks_run = meant(schedule, self.plan.get("pp") or 1, chunks)
            if chunks_run in kind.chunks:
                return schedule
        near = nearest(str(stated), chunks)
        self._unknown(f"{path}: {stated!r} is unknown; falling back to {near}.")
        return near

    def _recompute(self, chunks: int) -> str | None:
        stated = self.plan.get("recompute")
        names: list[str] = []
        layers = 0.0
        if any(self.options.get(key) is not None for key in (MODULES, LAYERS)):
            model = self._model()
            names = [op.name for _, op in model.ops()]
            layers = _layers(model) / chunks
        word = None if stated is None else str(stated).lower()
        taken = recompute_from(self.options, word, names, layers)
        self.warnings += contradictions.of_recompute(self.options, word, taken, names, layers)
        return taken

    def _model(self) -> Model:
        return load_model(self.case["model"], self.case.get("seq_len"))

    # --- batches ----------------------------------------------------------------------------------------

    def _batches(self, replicas: int, *, is_open: bool) -> tuple[int | None, int | None]:
        """Global batch and micro-batch. Where the plan is open, every device counts as a replica."""
        total, micro = self.batch.get("global"), self.batch.get("micro")
        passes = accumulated(self.options)
        micro = None if micro is None else _whole("batch.micro", micro)
        if total is None:
            total = self._of_devices(replicas)
        if total is None:
            if passes is None:
                return None, micro
            total = (micro or 1) * replicas * passes
        total = _whole("batch.global", total)
        self._compare_per_device(total, micro, replicas)
        if micro is None and passes is not None and total % (replicas * passes) == 0:
            micro = total // (replicas * passes)
            if is_open:
                self.assumptions.append(
                    f"micro-batch {micro:,}: {passes} per step, with a replica on each of the "
                    f"{replicas} devices (batch.micro)"
                )
        self.warnings += contradictions.of_batch(
            self.options, total, micro, replicas, is_open=is_open
        )
        return total, micro

    def _of_devices(self, replicas: int) -> int | None:
        """The global batch that a batch per device makes; devices that share a replica share its samples."""
        each = self.batch.get("per_device")
        if each is None:
            return None
        total = _whole(f"batch.per_device = {each} x {replicas} replicas", each * replicas)
        self.assumptions.append(
            f"global batch {total:,}: batch.per_device = {each} x {replicas} replicas (batch.global)"
        )
        return total

    def _compare_per_device(self, total: int, micro: int | None, replicas: int) -> None:
        each = self.batch.get("per_device")
        if each is None:
            return
        if abs(total / replicas - each) >= 1:  # what is less is rounding
            self.warnings.append(
                f"batch.per_device = {each} contradicts batch.global = {total} over {replicas} "
                "replicas; batch.global is used."
            )
        elif micro is not None and each % micro:
            self.warnings.append(
                f"batch.per_device = {each} is not a multiple of batch.micro = {micro}; batch.micro "
                "is used."
            )


def _letters(word: object) -> str:
    return "".join(letter for letter in str(word).lower() if letter.isalnum())


def _layers(model: Model) -> int:
    if model.shape is not None:
        return model.shape.num_hidden_layers
    return sum(block.repeat for block in model.blocks[1:-1])


def _whole(name: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CaseError(f"{name}: {value!r} is not a positive whole number.")
    return value
