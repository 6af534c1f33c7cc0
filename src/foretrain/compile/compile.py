"""From a workload, a plan and a runtime to the execution graph of one training step."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from foretrain.compile.assemble import PipelinePrograms, assemble
from foretrain.compile.blocks import blocks_of
from foretrain.compile.execution import Communication, Communicator, ExecutionGraph, Item, Load
from foretrain.compile.layout import TensorLayout
from foretrain.compile.model_states import NORM_BYTES, ModelStates
from foretrain.compile.passes.bucket import KernelTimer
from foretrain.compile.passes.fold import Traffic, fold, uses_of
from foretrain.compile.passes.pipeline import Part, StageProgram, StageSetting, stage_program
from foretrain.compile.passes.place import Instance, place
from foretrain.compile.passes.recompute import BlockPass
from foretrain.compile.passes.scope import check_axes, check_names
from foretrain.compile.segment import Interner
from foretrain.errors import PlanError
from foretrain.limits import PASSES
from foretrain.model.workload import Workload
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import SCHEDULES
from foretrain.plan.strategy import Schedule, block_choice
from foretrain.runtime import Runtime
from foretrain.units import multiples_near


def stage_programs(
    workload: Workload, plan: Plan, runtime: Runtime, kernel_timer: KernelTimer | None = None
) -> tuple[tuple[StageProgram, ...], tuple[Item, ...]]:
    """What every stage runs for a micro-batch and for a step, before it is laid out in time, and the items it names."""
    made = Compilation(workload, plan, runtime, kernel_timer)
    return made.programs, tuple(made.interner.items)


def micro_batches(workload: Workload, plan: Plan) -> int:
    """How many micro-batches one replica runs per step."""
    schedule, replicas = plan.schedule, plan.replicas
    micro = schedule.micro_batch
    if workload.global_batch % (micro * replicas):
        smaller = range(1, min(micro, workload.global_batch + 1))
        near = [m for m in smaller if workload.global_batch % (m * replicas) == 0]
        sizes = multiples_near(workload.global_batch, micro * replicas)
        remedy = f"a micro-batch of {near[-1]}" if near else f"a global batch of {sizes}"
        raise PlanError(
            f"global batch {workload.global_batch:,} is not divisible by micro-batch {micro} x"
            f" {replicas} replicas = {micro * replicas}. Try {remedy}."
        )
    count = workload.global_batch // (micro * replicas)
    passes = count * schedule.stages * schedule.chunks
    if not PASSES.allows(passes):
        raise PlanError(
            f"a step of {count:,} micro-batches through {schedule.stages * schedule.chunks:,} "
            f"parts of the model is too long to simulate: {PASSES.fault(passes)} Increase the "
            "micro-batch or reduce the global batch."
        )
    return count


class Compilation:
    """What stages run for a micro-batch, compiled once for steps of any length."""

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        runtime: Runtime,
        kernel_timer: KernelTimer | None = None,
    ) -> None:
        self.workload, self.plan, self.runtime, self.kernel_timer = (
            workload,
            plan,
            runtime,
            kernel_timer,
        )
        self.sizes = dict(plan.mesh.axes)
        self.interner = Interner()
        self.blocks = blocks_of(workload, plan, runtime)
        check_names(plan.root, workload.model)

    def graph(self, workload: Workload, traffic: Traffic, is_folded: bool) -> ExecutionGraph:
        """The step of a workload that differs from the one compiled in its global batch at most."""
        schedule = self._schedule()
        count = micro_batches(workload, self.plan)
        kind = SCHEDULES[schedule.kind]
        orders = tuple(
            kind.order(stage, schedule.stages, count, schedule.chunks)
            for stage in range(schedule.stages)
        )
        programs = self.programs
        barriers = self._barriers(programs)
        uses = uses_of(self.interner.items)
        alone = frozenset(c for c, _ in uses_of(barriers[-1:]) if self._joins_all(c))
        alone -= {c for c, _ in uses}
        every = tuple(dict.fromkeys((*uses, *uses_of(barriers))))
        classes = fold(traffic, self.plan.mesh, every, alone, is_folded)
        pipeline = PipelinePrograms(
            programs,
            orders,
            schedule.pieces,
            kind.joins_gradients,
            barriers,
            self._loads(workload.global_batch),
        )
        return assemble(pipeline, classes, self.interner.copy(), self.runtime)

    @cached_property
    def programs(self) -> tuple[StageProgram, ...]:
        programs = self._stages(SCHEDULES[self._schedule().kind].splits_backward)
        check_axes(self.plan.mesh, self.blocks.used_axes, self.workload.model)
        return programs

    def _schedule(self) -> Schedule:
        schedule = self.plan.schedule
        stages = self.sizes.get("pp", 1)
        if schedule.stages != stages:
            raise PlanError(
                f"the schedule has {schedule.stages} stages but the mesh has pp = "
                f"{stages}. These must be equal."
            )
        return schedule

    def _stages(self, splits_backward: bool) -> tuple[StageProgram, ...]:
        schedule = self.plan.schedule
        by_gemms = self.runtime.pipeline.places_by_products
        parts = self._parts(place(self.blocks.model, schedule, by_gemms))
        pieces = schedule.pieces.of
        setting = StageSetting(
            self.workload,
            self.plan,
            self.runtime,
            self.sizes,
            splits_backward,
            self.interner,
            self.kernel_timer,
        )
        known: dict[tuple[object, ...], StageProgram] = {}
        programs = []
        for stage in range(schedule.stages):
            mine = tuple(parts[piece] for piece in pieces[:, stage])
            key = tuple(part.signature for part in mine)  # most stages in the middle are alike
            if key not in known:
                known[key] = stage_program(stage, mine, setting)
            found = known[key]
            programs.append(replace(found, stage=replace(found.stage, index=stage)))
        return tuple(programs)

    def _parts(self, placed: tuple[tuple[Instance, ...], ...]) -> list[Part]:
        parts: list[Part] = []
        layouts: tuple[TensorLayout, ...] | None = None
        received = 0.0
        hops = [0, *self.plan.schedule.pieces.hops.tolist(), 0]
        for index, instances in enumerate(placed):
            passes: list[BlockPass] = []
            offloads: list[bool] = []
            for block, repetition in instances:
                name = self.blocks.model.blocks[block].name
                choice = block_choice(self.plan.root, name, repetition)
                block_pass, layouts = self.blocks.block(
                    block, repetition, layouts, choice.recompute
                )
                passes.append(block_pass)
                offloads.append("activations" in choice.offload)
            part = Part(
                passes=tuple(passes),
                offloads=tuple(offloads),
                ahead=hops[index + 1],
                behind=-hops[index],
                received_bytes=received,
            )
            received = part.passes[-1].boundary_bytes
            parts.append(part)
        return parts

    def _barriers(self, programs: tuple[StageProgram, ...]) -> tuple[Item, ...]:
        """Collectives between stages before the update: tied weights, then the global gradient norm."""
        items: list[Item] = []
        tied = self._tied_bytes() if len(programs) > 1 else 0.0
        if tied:
            ends = Communicator(("pp",), "ends")
            items.append(Item(Communication("all_reduce", tied, ends, "embedding")))
        axes = tuple(axis for axis, size in self.plan.mesh.axes if size > 1)
        if axes and ModelStates(self.workload, self.runtime).joins_ranks:
            norm = Communication("all_reduce", NORM_BYTES, Communicator(axes), "norm")
            items.append(Item(norm))
        return tuple(items)

    def _loads(self, global_batch: int) -> tuple[Item, ...]:
        """Samples of the next step, shared out evenly over the ranks of the first stage."""
        if self.workload.data is None:
            return ()
        samples = global_batch / (self.plan.ranks / self.plan.schedule.stages)
        return tuple(Item(Load(samples, kind)) for kind in ("fetch", "prep"))

    def _tied_bytes(self) -> float:
        """Gradients of weights that stages have copies of: one message for each, however many copies there are."""
        origins = self.workload.model.origins
        size = ModelStates(self.workload, self.runtime).gradient_bytes
        shared = {
            origins[weight.path]: weight.elements
            for program in self.blocks.programs.values()
            for op in program.ops
            for weight in op.weights
            if weight.path in origins and not weight.is_frozen
        }
        return sum(shared.values()) * size

    def _joins_all(self, communicator: Communicator) -> bool:
        ranks = self.plan.mesh.size(*communicator.axes)
        return communicator.kind == "group" and ranks == self.plan.ranks
