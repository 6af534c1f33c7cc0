"""What a stack does where a plan's short form says nothing.

A short form is always read, and written, with its stack in mind: `dp16` is fully sharded under FSDP and replicated under
Megatron. `Words` hold every choice; only texts leave some of them open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretrain.model.graph import Model
from foretrain.plan.parallelism import LARGE
from foretrain.runtime import Runtime

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words


@dataclass(frozen=True, slots=True)
class PlanDefaults:
    """Choices for what a short form leaves open."""

    zero: int = 0
    zero_in_pipelines: int | None = None  # None: as elsewhere
    sp: bool = False
    recompute: str = "none"
    schedule: str | None = None  # of pipelines whose stages are in one piece; None: 1f1b
    tables: str = "replicated"
    exchange: str = "all-gather"  # of context parallelism

    def zero_of(self, words: Words) -> int:
        """State is split only where there are replicas to split it over."""
        if (words.dp or 1) * words.cp == 1:
            return 0
        in_pipelines = self.zero if self.zero_in_pipelines is None else self.zero_in_pipelines
        return in_pipelines if words.pp > 1 else self.zero

    def sp_of(self, words: Words) -> bool:
        return self.sp and words.tp > 1

    def schedule_of(self, words: Words) -> str | None:
        return self.schedule if words.pp > 1 and words.vpp == 1 else None

    def tables_of(self, words: Words) -> str:
        return self.tables if (words.dp or 1) > 1 else "replicated"

    def exchange_of(self, words: Words) -> str:
        return self.exchange if words.cp > 1 else PLAIN.exchange


PLAIN = PlanDefaults()
"""A stack that does nothing by itself."""


def plan_defaults(stack: Runtime, model: Model | None = None) -> PlanDefaults:
    """The defaults of a stack's preset, for a model where one is known.

    Stacks that keep weights gathered in pipelines split them no more there: gradients and optimizer states stay
    where one rank keeps them (ZeRO-1). Others refuse to split as much there as elsewhere. Latent attention has a
    recomputation of its own in some recipes. A model without large tables has none to split.
    """
    rows = dict(stack.plan.defaults)
    zero, in_pipelines = int(rows.get("zero", "0")), rows.get("zero_in_pipelines")
    if zero == 3 and stack.sharding.keeps_gathered_in_pipelines:
        in_pipelines = "1"
    ops = {op.name for _, op in model.ops()} if model is not None else {LARGE}
    latent = rows.get("recompute_latent") if "kv_up" in ops else None
    return PlanDefaults(
        zero=zero,
        zero_in_pipelines=None if in_pipelines is None else int(in_pipelines),
        sp=rows.get("sequence_parallel") == "true",
        recompute=latent or rows.get("recompute", "none"),
        schedule=rows.get("schedule"),
        tables=rows.get("tables", "replicated") if LARGE in ops else "replicated",
        exchange=rows.get("exchange", "all-gather"),
    )
