"""Blocks: what a repetition of a block runs under a plan, compiled once for all that are alike."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from foretrain.compile.layout import TensorLayout
from foretrain.compile.passes.communicate import (
    PURPOSES,
    BlockProgram,
    OpProgram,
    Setting,
    communicate,
)
from foretrain.compile.passes.partition import partition
from foretrain.compile.passes.pieces import in_pieces
from foretrain.compile.passes.place import finer, stored_before
from foretrain.compile.passes.recompute import BlockPass, recompute
from foretrain.compile.passes.scale import Line
from foretrain.compile.passes.shard import unpacked
from foretrain.model.graph import Model
from foretrain.model.ops import FAMILIES
from foretrain.model.ops.base import KernelChoices
from foretrain.model.ops.family import OpFamily
from foretrain.model.precision import Precision
from foretrain.model.workload import Workload
from foretrain.plan.plan import Plan
from foretrain.plan.strategy import likeness, nodes, of_repetition
from foretrain.runtime import Runtime
from foretrain.runtime.features.gemm_alignment import GemmAlignment
from foretrain.runtime.features.special_fusions import SpecialFusions

KNOWN = 16
"""Plans whose blocks are kept: those of one search that are simulated."""


class Blocks:
    """The blocks of a model, cut as a plan says; what was compiled is remembered."""

    def __init__(self, model: Model, precision: Precision, plan: Plan, runtime: Runtime) -> None:
        self.plan, self.runtime = plan, runtime
        self.model = finer(model, plan.schedule)
        self.setting = Setting(
            sizes=dict(plan.mesh.axes),
            spoken=_spoken(plan),
            precision=precision,
            choices=choices_of(runtime),
            runtime=runtime,
        )
        self.programs: dict[tuple[object, ...], BlockProgram] = {}
        self.used_axes: set[str] = set()
        self._passes: dict[tuple[object, ...], BlockPass] = {}
        self._first: dict[tuple[int, int], int] = {}
        self._said: dict[tuple[object, ...], int] = {}
        self._has_ranges = any("[" in node.select for node in nodes(plan.root))
        self._drops = stored_before(self.model, plan.schedule, runtime.pipeline.places_by_products)

    def block(
        self, number: int, repetition: int, incoming: tuple[TensorLayout, ...] | None, choice: str
    ) -> tuple[BlockPass, tuple[TensorLayout, ...]]:
        """What a repetition runs on tensors that lie as `incoming` says, recomputing what `choice` says, and how
        what it hands on lies."""
        key = (number, self._alike(number, repetition), incoming)
        program = self.program(number, repetition, incoming)
        choice = recomputed(choice, repetition, self.runtime)
        full_key = (*key, choice)
        block_pass = self._passes.get(full_key)
        if block_pass is None:
            block_pass = recompute(
                program, choice, self.runtime.memory.logits_copies, self.runtime.plan.selective
            )
            block_pass = unpacked(block_pass, self.setting.precision, self.runtime)
            self._passes[full_key] = block_pass
        return block_pass, program.outgoing

    def _alike(self, number: int, repetition: int) -> int:
        """The first repetition that is split in the same way."""
        if not self._has_ranges:
            return 0
        found = self._first.get((number, repetition))
        if found is None:
            name = self.model.blocks[number].name
            said = (number, likeness(self.plan.root, name, repetition))
            found = self._first[number, repetition] = self._said.setdefault(said, repetition)
        return found

    def program(
        self, number: int, repetition: int, incoming: tuple[TensorLayout, ...] | None
    ) -> BlockProgram:
        """… without what is recomputed."""
        key = (number, self._alike(number, repetition), incoming)
        found = self.programs.get(key)
        if found is None:
            found = self.programs[key] = self._program(number, repetition, incoming)
        return found

    def _program(
        self, number: int, repetition: int, incoming: tuple[TensorLayout, ...] | None
    ) -> BlockProgram:
        block, plan = self.model.blocks[number], self.plan
        samples = plan.schedule.micro_batch * plan.replicas
        pad = self.runtime.plan.pads_vocabulary_to
        ops = partition(block, repetition, plan.root, plan.mesh, samples, pad)
        self.used_axes.update(axis for local in ops for axis in local.used)
        lone = replace(block, inputs=()) if incoming is None else block
        program = communicate(lone, ops, incoming or (), self.setting)
        if self.runtime.tensor_parallel.tp_comm_overlap:
            program = replace(program, ops=in_pieces(program.ops))
        return self._without_copies(program)

    def _without_copies(self, program: BlockProgram) -> BlockProgram:
        if not self._drops:
            return program

        def lean(op: OpProgram) -> OpProgram:
            return replace(op, weights=tuple(w for w in op.weights if w.path not in self._drops))

        return replace(program, ops=tuple(lean(op) for op in program.ops))


class BlocksOnLine(Blocks):
    """The blocks of a plan whose micro-batch alone differs from two that were compiled with smaller ones: (micro-batch,
    blocks) of each."""

    def __init__(
        self,
        model: Model,
        precision: Precision,
        plan: Plan,
        runtime: Runtime,
        low: tuple[int, Blocks],
        high: tuple[int, Blocks],
    ) -> None:
        super().__init__(model, precision, plan, runtime)
        self._low, self._high = low[1], high[1]
        aligned = self.setting.choices.aligned_to
        self._line = Line(low[0], high[0], plan.schedule.micro_batch, aligned)

    def _program(
        self, number: int, repetition: int, incoming: tuple[TensorLayout, ...] | None
    ) -> BlockProgram:
        asked = number, repetition, incoming
        found = self._line.program(self._low.program(*asked), self._high.program(*asked))
        if found is None:
            return super()._program(*asked)
        self.used_axes |= self._low.used_axes
        return found


def blocks_of(workload: Workload, plan: Plan, runtime: Runtime) -> Blocks:
    """The blocks of a workload under a plan. Neither its batch nor the cluster decides them, so that questions that differ
    in those alone (sweeps, offers, one plan asked about again) share what was compiled."""
    families = tuple(FAMILIES.values())  # others may be registered under the same names
    return _known(workload.model, workload.precision, replace(plan, text=""), runtime, families)


@lru_cache(maxsize=KNOWN)
def _known(
    model: Model, precision: Precision, plan: Plan, runtime: Runtime, _: tuple[OpFamily, ...]
) -> Blocks:
    return Blocks(model, precision, plan, runtime)


def recomputed(choice: str, repetition: int, runtime: Runtime) -> str:
    """What one repetition of a block runs again; some stacks mean every second block by `selective`."""
    if choice == "selective" and runtime.plan.selective == "blocks":
        choice = "full*0.5"
    return of_repetition(choice, repetition)


def choices_of(runtime: Runtime) -> KernelChoices:
    special = runtime.special_fusions or SpecialFusions()
    alignment = runtime.gemm_alignment or GemmAlignment()
    return KernelChoices(
        attention=runtime.kernels.attention,
        fuses_elementwise=runtime.kernels.fuses_elementwise,
        keeps_quantised=runtime.kernels.keeps_quantised,
        fuses_norms=runtime.kernels.fuses_elementwise or runtime.kernels.fuses_norms,
        rotary=runtime.kernels.rotary,
        fuses_behind_norms=special.fuses_behind_norms,
        fuses_score_dropout=special.fuses_score_dropout,
        aligned_to=alignment.aligned_to,
        fuses_loss=runtime.kernels.fuses_loss,
        groups_experts=runtime.expert_parallel.groups_experts,
        fuses_epilogues=special.fuses_epilogues,
        channels_last=runtime.kernels.channels_last,
    )


def _spoken(plan: Plan) -> dict[str, str]:
    words = {}
    for name, word in PURPOSES:
        if any(name == n for n, _ in plan.mesh.names) or name in dict(plan.mesh.axes):
            words.update(dict.fromkeys(plan.mesh.expand(name), word))
    return words
