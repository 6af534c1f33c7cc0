"""How a tensor lies on the mesh, and what it takes to change that.

A `TensorLayout` gives, for every position of a tensor, the axes that cut it, and the axes over which the values
are partial sums still to be added. `transition` is the whole of communication inference: it compares two
layouts and names the collectives between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from foretrain.compile.execution import Communication, Communicator


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """`axes[i]` cut position i; `partial` axes hold addends. Nothing before a constant tensor is trained, so that it has
    no gradient."""

    axes: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()
    is_constant: bool = False

    @property
    def settled(self) -> TensorLayout:
        """The same cuts with all partial sums added up: the layout a gradient comes back in."""
        return TensorLayout(self.axes)

    def position_of(self, axis: str) -> int | None:
        for position, axes in enumerate(self.axes):
            if axis in axes:
                return position
        return None

    @property
    def cutting(self) -> tuple[str, ...]:
        return tuple(axis for axes in self.axes for axis in axes)


def transition(
    have: TensorLayout,
    want: TensorLayout,
    full_bytes: float,
    sizes: Mapping[str, int],
    purpose: str,
) -> tuple[Communication, ...]:
    """The collectives that turn `have` into `want`, in the order they run.

    `full_bytes` is the whole tensor over all cutting axes. The cases, tried in this order:
    partial sums whose axis cuts the target → reduce-scatter; other partial sums → all-reduce; an axis that
    cuts another position in the target → all-to-all; an axis that cuts nothing there → all-gather. An axis
    that newly cuts needs no message: every rank keeps its part, and only that part takes part in the rest.
    """
    known = (*have.cutting, *have.partial)
    held = full_bytes / _ranks((*have.cutting, *(a for a in want.cutting if a not in known)), sizes)
    scatter = tuple(a for a in have.partial if want.position_of(a) is not None and sizes[a] > 1)
    reduce = tuple(a for a in have.partial if want.position_of(a) is None and sizes[a] > 1)
    move = tuple(
        a for a in have.cutting
        if sizes[a] > 1 and want.position_of(a) not in (None, have.position_of(a))
    )  # fmt: skip
    gather = tuple(a for a in have.cutting if sizes[a] > 1 and want.position_of(a) is None)
    steps: list[Communication] = []
    if scatter:
        steps.append(Communication("reduce_scatter", held, Communicator(scatter), purpose))
        held /= _ranks(scatter, sizes)
    if reduce:
        steps.append(Communication("all_reduce", held, Communicator(reduce), purpose))
    if move:
        steps.append(Communication("all_to_all", held, Communicator(move), purpose))
    if gather:
        held *= _ranks(gather, sizes)
        steps.append(Communication("all_gather", held, Communicator(gather), purpose))
    return tuple(steps)


def overlap_bytes(
    parts_have: int, parts_want: int, halo: float, extent: int, row_bytes: float
) -> float:
    """Bytes the worst-placed rank must fetch by interval intersection.

    The producer holds `[i·n/parts_have, …)`; consumer j needs its own interval widened by `halo` rows. What it
    needs and does not hold itself comes point to point. Where the numbers of parts differ, the finer parts are
    cuts of the coarser ones, as axes of a mesh are.
    """
    worst = 0.0
    for j in range(parts_want):
        low = max(0.0, extent * j / parts_want - halo)
        high = min(float(extent), extent * (j + 1) / parts_want + halo)
        own = j * parts_have // parts_want
        own_low, own_high = extent * own / parts_have, extent * (own + 1) / parts_have
        held = max(0.0, min(high, own_high) - max(low, own_low))
        worst = max(worst, (high - low) - held)
    return worst * row_bytes


def _ranks(axes: tuple[str, ...], sizes: Mapping[str, int]) -> int:
    return prod(sizes[axis] for axis in axes)
