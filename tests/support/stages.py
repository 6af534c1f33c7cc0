"""What the compiler makes of every stage of a plan, laid open."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.compile.execution import Communication, Compute, Item
from foretrain.compile.passes.pipeline import StageProgram
from foretrain.compile.segment import Segment
from foretrain.plan.schedules import Pieces


@dataclass(frozen=True)
class Compiled:
    programs: tuple[StageProgram, ...]
    items: tuple[Item, ...]
    pieces: Pieces

    def segments(self, phase: int, is_edge: bool = False) -> list[Segment]:
        """Of every piece of the model, from the first to the last."""
        where = zip(self.pieces.stage_of.tolist(), self.pieces.chunk_of.tolist(), strict=True)
        return [self.programs[stage].segments[phase, chunk, is_edge] for stage, chunk in where]

    def moved(self, segment: Segment, stream: str) -> list[float]:
        """Bytes of collectives beside a chain; the first of several that add up a bucket stands for it."""
        works = [self.items[a.item].work for a in segment.asyncs if a.stream == stream]
        return [w.bytes for w in works if isinstance(w, Communication)]

    def updates(self, name: str) -> list[list[Compute]]:
        chains = [[self.items[i].work for i in p.update.chain.tolist()] for p in self.programs]
        return [[w for w in chain if isinstance(w, Compute) and w.op == name] for chain in chains]

    def chain(self, segment: Segment) -> tuple[Item, ...]:
        return tuple(self.items[i] for i in segment.chain.tolist())


def is_boundary(item: Item) -> bool:
    """Whether an item is about what stages send each other."""
    return isinstance(item.work, Communication) and item.work.purpose == "pipeline"
