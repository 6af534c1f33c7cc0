"""Plans as columns: many short forms at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Ints32
from foretrain.plan.defaults import PLAIN, PlanDefaults
from foretrain.plan.parallelism import expert_tensor_degree
from foretrain.plan.schedules import DEFAULT
from foretrain.plan.short_form import Words, schedule_of
from foretrain.planning.layers import State


@dataclass(frozen=True, eq=False, slots=True)
class Palette:
    """What the columns of numbers stand for where a choice is not a number."""

    recompute: tuple[str, ...] = ("none",)
    schedule: tuple[str, ...] = (DEFAULT,)
    order: tuple[tuple[str, ...] | None, ...] = (None,)  # innermost first; None: the runtime's
    offload: tuple[tuple[str, ...], ...] = ((),)
    buckets: tuple[float | None, ...] = (None,)
    exchange: tuple[str, ...] = ("all-gather",)
    tables: tuple[str, ...] = ("replicated",)
    layers: tuple[tuple[int, ...] | None, ...] = (None,)  # of every part; None: as they are placed
    defaults: PlanDefaults = PLAIN  # of the stack, which texts leave open

    def values(self, choice: str) -> tuple[Any, ...] | None:
        """What the numbers of a choice stand for, as constraints name it; None where it is a number."""
        match choice:
            case "recompute" | "schedule" | "tables":
                named: tuple[Any, ...] = getattr(self, choice)
                return named
            case "cp-exchange":
                return self.exchange
            case "order":
                return tuple("default" if one is None else "-".join(one) for one in self.order)
            case "offload":
                return tuple("+".join(one) or "none" for one in self.offload)
            case "buckets":
                return tuple("default" if one is None else one for one in self.buckets)
            case "layers":
                return tuple(
                    "even" if one is None else ",".join(map(str, one)) for one in self.layers
                )
            case "sp":
                return False, True
        return None


@dataclass(frozen=True, eq=False, slots=True)
class Choices:
    """One plan per row. `shard` 0: over all replicas. Names are numbers in the palette."""

    palette: Palette
    tp: Ints32
    pp: Ints32
    vpp: Ints32
    dp: Ints32
    cp: Ints32
    ep: Ints32
    etp: Ints32  # tensor parallel degree inside experts
    micro: Ints32
    zero: Ints32
    shard: Ints32
    sp: Ints32
    recompute: Ints32
    schedule: Ints32
    order: Ints32
    offload: Ints32
    buckets: Ints32
    exchange: Ints32
    tables: Ints32
    layers: Ints32
    table: Ints32 | None = None  # … all of them as rows of one array, where they are

    @classmethod
    def of(cls, palette: Palette, table: Ints32) -> Choices:
        """Of columns that are rows of one array."""
        columns: dict[str, Any] = dict(zip(COLUMNS, table, strict=True))
        return cls(palette, **columns, table=table)

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: NDArray[Any]) -> Choices:
        """Some of the plans: row numbers or a mask."""
        table = self.table
        if table is None:
            table = np.stack([getattr(self, name) for name in COLUMNS])
        return Choices.of(self.palette, table[:, rows])

    def with_column(self, name: str, values: Ints32) -> Choices:
        """… of which one choice is another."""
        columns = [values if n == name else getattr(self, n) for n in COLUMNS]
        return Choices.of(self.palette, np.stack(columns))

    def words(self, row: int) -> Words:
        p = self.palette
        words = Words(
            tp=int(self.tp[row]),
            pp=int(self.pp[row]),
            vpp=int(self.vpp[row]),
            dp=int(self.dp[row]),
            cp=int(self.cp[row]),
            ep=int(self.ep[row]),
            zero=int(self.zero[row]),
            shard=int(self.shard[row]) or None,
            sp=bool(self.sp[row]),
            micro=int(self.micro[row]),
            recompute=p.recompute[self.recompute[row]],
            schedule=p.schedule[self.schedule[row]] if self.pp[row] > 1 else None,
            order=p.order[self.order[row]],
            offload=p.offload[self.offload[row]],
            buckets=p.buckets[self.buckets[row]],
            exchange=p.exchange[self.exchange[row]] if self.cp[row] > 1 else PLAIN.exchange,
            tables=p.tables[self.tables[row]],
            layers=p.layers[self.layers[row]],
        )
        etp = int(self.etp[row])
        is_meant = words.ep == 1 or expert_tensor_degree(words) == etp
        return words if is_meant else replace(words, etp=etp)

    def text(self, row: int) -> str:
        return self.words(row).text(self.palette.defaults)

    def state(self, row: int) -> State:
        """The state that the plan's blocks are in."""
        order = self.palette.order[self.order[row]]
        return State(
            tp=int(self.tp[row]),
            cp=int(self.cp[row]),
            ep=int(self.ep[row]),
            etp=int(self.etp[row]) if self.ep[row] > 1 else None,
            sp=bool(self.sp[row]),
            micro=int(self.micro[row]),
            recompute=self.palette.recompute[self.recompute[row]],
            exchange=self.palette.exchange[self.exchange[row]],
            tables=self.palette.tables[self.tables[row]],
            order=order,
            pp=int(self.pp[row]) if self._has_stages_inside(row) else 1,
        )

    def _has_stages_inside(self, row: int) -> bool:
        """Whether other stages lie between the ranks of a tensor, context or expert group."""
        order = self.palette.order[self.order[row]]
        if order is None or "pp" not in order or self.pp[row] == 1:
            return False
        inner = order[order.index("pp") + 1 :]  # axes outside of pp
        wanted = {"tp": self.tp[row], "cp": self.cp[row], "dp": self.ep[row]}
        return any(wanted.get(axis, 1) > 1 for axis in inner)


COLUMNS = tuple(f.name for f in fields(Choices) if f.name not in ("palette", "table"))


def joined(parts: Iterable[Choices], palette: Palette) -> Choices:
    """All rows of several tables with one palette."""
    found = list(parts)
    columns = (
        np.concatenate([getattr(part, name) for part in found])
        if found
        else np.zeros(0, dtype=np.int32)
        for name in COLUMNS
    )
    return Choices(palette, *columns)


def lone(words: Words) -> Choices:
    """A plan by itself, of words that name its replicas."""
    palette = Palette(
        recompute=(words.recompute or "none",),
        schedule=(schedule_of(words).kind,),
        order=(words.order,),
        offload=(words.offload,),
        buckets=(words.buckets,),
        exchange=(words.exchange,),
        tables=(words.tables,),
        layers=(words.layers,),
    )
    names = ("tp", "pp", "vpp", "dp", "cp", "ep", "zero")
    numbers = {name: getattr(words, name) for name in names}
    numbers |= {"etp": expert_tensor_degree(words) if words.ep > 1 else words.tp}
    numbers |= {"micro": words.micro or 1, "shard": words.shard or 0, "sp": int(words.sp)}
    columns = (np.array([numbers.get(name, 0)], dtype=np.int32) for name in COLUMNS)
    return Choices(palette, *columns)
