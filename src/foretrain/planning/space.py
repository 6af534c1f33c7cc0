"""The space: which plans are looked at, as columns, one part of it at a time.

Plans that only spell another plan differently (ZeRO without replicas, sequence parallelism without tensor
parallelism) are not plans of their own. Plans that cannot run are counted by the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from math import gcd, isqrt
from typing import Any

import numpy as np

from foretrain.arrays import Bools, Ints32
from foretrain.compile.passes.place import place
from foretrain.compile.passes.scope import check_names
from foretrain.errors import PlanError, UnsupportedPlanError
from foretrain.limits import DEVICES, LAYERS, MICRO_BATCH
from foretrain.model.graph import Model
from foretrain.plan.constraints import Constraint, kept, parse
from foretrain.plan.parallelism import LARGE, expert_tensor_degree
from foretrain.plan.relations import Relation
from foretrain.plan.rules import Condition
from foretrain.plan.schedules import SCHEDULES, meant
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import EXCHANGES, Schedule, StrategyNode
from foretrain.plan.supported import Rule, always, as_ruled, expect_able, rules_of
from foretrain.planning.choices import COLUMNS, Choices, Palette
from foretrain.planning.task import Task

SHORTEST_SLICE = 512
"""Tokens of a sequence that context parallelism leaves a rank at least."""
MOST_MICRO = 64
"""Of the grid; larger ones are refinements of those that fit."""
MOST_CHUNKS = 24
"""Of a stage: recipes of NVIDIA have up to 24 (Qwen3 30B on two stages, chunks of single layers)."""
FEWEST_POWERS = 4
SHARES = tuple(f"full*{eighths / 8:g}" for eighths in range(1, 8))
"""Of the layers that are run again, where running all again fits and none does not."""
BUCKETS = (5e6, 25e6, 100e6, 1e9)
"""Bytes: many small messages, the 25 MB of PyTorch's DDP, few, and all at once but for the largest models."""
AXES = ("tp", "cp", "pp", "dp")


@dataclass(frozen=True, slots=True)
class SpacePart:
    """Plans that split blocks alike: the unit of work."""

    tp: int
    cp: int
    ep: int


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Space:
    """Options of every choice. `dp` is what the others leave."""

    devices: int
    batch: int
    layers: int
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    vpp: tuple[int, ...]
    cp: tuple[int, ...]
    ep: tuple[int, ...]
    micro: tuple[int, ...]
    zero: tuple[int, ...]
    shard: tuple[int, ...]
    sp: tuple[bool, ...]
    palette: Palette
    constraints: tuple[Constraint, ...] = ()
    refused_parts: Mapping[tuple[int, int], str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    splits_layers: bool = False  # also otherwise than they are placed without a word
    more: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of choices beside those of the grid, which `refinements` looks at."""

    def parts(self) -> tuple[SpacePart, ...]:
        """Every way to split blocks that the number of devices allows."""
        found = (SpacePart(tp, cp, ep) for tp, cp, ep in product(self.tp, self.cp, self.ep))
        return tuple(
            p for p in found
            if self.devices % (p.tp * p.cp) == 0 and (self.devices // p.cp) % p.ep == 0
        )  # fmt: skip

    def choices(self, part: SpacePart) -> tuple[Choices, dict[str, int]]:
        """The plans of a part that can run, and how many cannot, by the reason."""
        blocks = [self._of_mesh(part, pp, vpp) for pp, vpp in self._pipelines(part)]
        table = np.concatenate(blocks) if blocks else np.zeros((0, len(COLUMNS)), np.int32)
        pruned: dict[str, int] = {}
        for reason, ok in self._checks(Choices(self.palette, *table.T)):
            if reason:
                lost = int((~ok).sum())
                if lost:
                    pruned[reason] = pruned.get(reason, 0) + lost
            table = table[ok]
        return Choices.of(self.palette, np.ascontiguousarray(table.T)), pruned

    def allowed(self, choices: Choices) -> Bools:
        """[plans] which of them constraints and rules allow."""
        here = np.arange(len(choices))
        for _, ok in self._checks(choices, is_grid=False):
            here = here[ok]
        found = np.zeros(len(choices), dtype=np.bool_)
        found[here] = True
        return found

    def _pipelines(self, part: SpacePart) -> Iterator[tuple[int, int]]:
        for pp, vpp in product(self.pp, self.vpp):
            if self.splits_layers and self.refused_parts.get((pp, vpp)) == _UNEVEN:
                continue  # a refinement
            if self.devices % (part.tp * part.cp * pp) == 0 and (vpp == 1 or pp > 1):
                yield pp, vpp

    def _of_mesh(self, part: SpacePart, pp: int, vpp: int) -> Ints32:
        """[plans, columns] all combinations of the other choices on one mesh."""
        dp = self.devices // (part.tp * part.cp * pp)
        p = self.palette
        options: dict[str, Sequence[int]] = {
            "tp": (part.tp,), "pp": (pp,), "vpp": (vpp,), "dp": (dp,), "cp": (part.cp,), "ep": (part.ep,),
            "etp": self._inside_experts(part, dp),
            "micro": self.micro, "zero": self.zero, "shard": self.shard,
            "sp": tuple(map(int, self.sp)) if part.tp > 1 else (0,),
            "recompute": range(len(p.recompute)),
            "schedule": self._schedules(pp, vpp), "order": range(len(p.order)),
            "offload": range(len(p.offload)), "buckets": range(len(p.buckets)),
            "exchange": range(len(p.exchange)) if part.cp > 1 else (0,),
            "tables": range(len(p.tables)),
            "layers": [n for n, counts in enumerate(p.layers) if counts is None or len(counts) == pp * vpp],
        }  # fmt: skip
        grids = np.meshgrid(*(np.array(options[name], np.int32) for name in COLUMNS), indexing="ij")
        return np.stack([grid.ravel() for grid in grids], axis=1)

    def _inside_experts(self, part: SpacePart, dp: int) -> list[int]:
        """Tensor-parallel degrees inside experts: what a plan without a word means, none, and what is asked for."""
        meant = expert_tensor_degree(Words(part.tp, cp=part.cp, ep=part.ep, dp=dp))
        if part.ep == 1 or part.tp == 1:
            return [part.tp if part.ep == 1 else meant]
        asked = _asked_for("etp", self.constraints)
        degrees = dict.fromkeys((meant, 1, part.tp, *sorted(asked)))
        return [n for n in degrees if n == meant or _holds_experts(part, dp, n)]

    def _schedules(self, pp: int, vpp: int) -> list[int]:
        names = self.palette.schedule
        if pp == 1:
            return [0] if names else []
        return [i for i, name in enumerate(names) if vpp in SCHEDULES[name].chunks]

    def _checks(self, every: Choices, is_grid: bool = True) -> Iterator[tuple[str, Bools]]:
        """Masks, each of what the masks before it left; those without a reason drop other spellings."""
        state = _Left(every)
        c = every
        replicas = c.dp * c.cp
        is_same = ((c.zero > 0) | (c.shard > 0)) & (replicas == 1)
        is_same |= (c.shard > 0) & ((c.zero == 0) | (c.shard >= replicas))
        is_same |= (c.order > 0) & ((c.pp == 1) | (c.dp == 1))
        is_same |= (c.buckets > 0) & (replicas == 1)
        is_same |= (c.tables > 0) & (c.dp == 1)
        yield "", state.mask(~is_same)
        for constraint in self.constraints:
            if constraint.name in ("dp", "etp"):
                yield constraint.text, state.mask(_allowed(c, constraint))
        for rule in self.rules:
            broken = ~_all(c, rule.needs)
            for one in rule.when:
                broken &= _allowed(c, one)
            yield f"not run by the stack: {rule.because}", state.mask(~broken)
        yield (
            "global batch not divisible by replicas x micro-batch",
            state.mask(self.batch % (c.dp * c.micro) == 0),
        )
        count = self.batch // np.maximum(c.dp * c.micro, 1)
        for number, name in enumerate(self.palette.schedule):
            kind = SCHEDULES[name]
            ok = (c.pp == 1) | (c.schedule != number) | kind.fits(c.pp, count)
            yield f"{name} schedule: {kind.needs}", state.mask(ok)
        yield (
            "replicas not divisible by the hybrid shard size",
            state.mask((c.shard == 0) | (replicas % np.maximum(c.shard, 1) == 0)),
        )
        holders = replicas * (c.tp // c.etp)
        yield "ranks not divisible by the expert-parallel size", state.mask(holders % c.ep == 0)
        for reason in dict.fromkeys(self.refused_parts.values()) if is_grid else ():
            bad = np.zeros(len(c), dtype=np.bool_)
            for pp, vpp in (p for p, why in self.refused_parts.items() if why == reason):
                bad |= (c.pp == pp) & (c.vpp == vpp)
            yield reason, state.mask(~bad)


def _holds_experts(part: SpacePart, dp: int, etp: int) -> bool:
    """Whether ranks that hold experts divide by these (`plan.parallelism.expert_axes`)."""
    if part.tp % etp:
        return False
    apart = part.tp // etp
    return dp * part.cp * apart % part.ep == 0 and part.ep % apart == 0


def _all(plans: Choices, constraints: Sequence[Condition]) -> Bools:
    """[plans] which of them all constraints allow; what a plan does not have is not asked for."""
    ok = np.ones(len(plans), dtype=np.bool_)
    for one in constraints:
        if isinstance(one, Relation):
            ok &= _related(plans, one)
            continue
        has = np.ones(len(plans), dtype=np.bool_)
        if one.name in ("schedule", "etp"):
            has = (plans.pp if one.name == "schedule" else plans.ep) > 1
        ok &= ~has | _allowed(plans, one)
    return ok


def _related(plans: Choices, one: Relation) -> Bools:
    """[plans] which of them a relation holds for; `micro-batches` and numbers of the work are numbers there."""

    def look(name: str) -> Any:
        return getattr(plans, name).astype(np.int64)

    return np.broadcast_to(np.asarray(one.at(look), dtype=np.bool_), len(plans))


def _allowed(plans: Choices, one: Condition) -> Bools:
    """[plans] which of them a constraint allows; those of stages none where there is one stage."""
    if isinstance(one, Relation):
        return _related(plans, one)
    named = plans.palette.values(one.name)
    column = getattr(plans, "exchange" if one.name == "cp-exchange" else one.name)
    codes, of = np.unique(column, return_inverse=True)
    values = [int(code) if named is None else named[code] for code in codes]
    ok = [one.allows(as_ruled(one.name, value)) for value in values]
    allowed: Bools = np.array(ok, dtype=np.bool_)[of]
    if one.name == "etp":
        return allowed & (plans.ep > 1)
    return allowed & (plans.pp > 1) if one.name == "schedule" else allowed


class _Left:
    """Masks over all rows, told as masks over those still there."""

    def __init__(self, every: Choices) -> None:
        self.here = np.ones(len(every), dtype=np.bool_)

    def mask(self, ok: Bools) -> Bools:
        told = ok[self.here]
        self.here &= ok
        return told


def space(task: Task, where: Sequence[str] = ()) -> Space:
    """The plans worth looking at for a task, under the user's constraints."""
    wanted = parse(where)
    model, devices = task.workload.model, task.devices
    dims = {dim for _, op in model.ops() for dim in op.size}
    experts = max((op.size.get("expert", 1) for _, op in model.ops()), default=1)
    domain, layers = _domain(task), _repeated(task)
    _expect_meaning(wanted, dims, model)

    rules = task.rules
    if not task.is_hypothetical:
        expect_able(task.runtime, wanted, task.facts)

    def option(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
        able = always(rules, name)
        values = [v for v in values if all(c.allows(as_ruled(name, v)) for c, _ in able)]
        found = kept(name, values, wanted)
        if not found:
            told = ", ".join(c.text for c in wanted if c.name == name)
            fault = (
                f"{told} leaves no value of {name}; possible values without it: "
                f"{', '.join(map(str, values)) or 'none'}."
            )
            if not able:
                raise PlanError(fault)
            raise UnsupportedPlanError(
                f"{fault} {task.runtime.name} cannot run others; --hypothetical searches them as well:",
                faults=tuple(dict.fromkeys(f"{because}." for _, because in able)),
            )
        return found

    splits = {"heads", "ffn"} & dims
    pps = option("pp", [n for n in _divisors(devices) if n <= max(1, layers)])
    # a schedule that has no other number of chunks asks for it
    kinds = [SCHEDULES[name] for name in option("schedule", _searched(task))]
    chunks = {kind.chunks.start for kind in kinds if len(kind.chunks) == 1}
    vpps = option("vpp", sorted(chunks.union(_chunks(layers, pps))))
    micros = option("micro", _micros(task.workload.global_batch))

    def beside(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
        """Values that are not in the grid, as far as rules and constraints on that choice allow them."""
        asked, able = [c for c in wanted if c.name == name], always(rules, name)
        return tuple(
            v for v in values
            if all(c.allows(v) for c in asked) and all(c.allows(as_ruled(name, v)) for c, _ in able)
        )  # fmt: skip

    return Space(
        devices=devices,
        batch=task.workload.global_batch,
        layers=layers,
        tp=option("tp", [n for n in _divisors(devices) if n <= domain] if splits else [1]),
        pp=pps,
        vpp=vpps,
        cp=option("cp", _context(task, devices)),
        ep=option("ep", list(_divisors(gcd(experts, devices))) if experts > 1 else [1]),
        micro=micros,
        zero=option("zero", [0, 1, 2, 3]),
        shard=option("shard", [0, domain] if devices > domain > 1 else [0]),
        sp=option("sp", [False, True] if "seq" in dims else [False]),
        palette=_palette(option, task, domain),
        constraints=wanted,
        refused_parts=_refused(task, pps, vpps, chunks | _asked_for("vpp", wanted)),
        rules=tuple(rule for rule in rules if rule.when or _is_left_open(rule)),
        splits_layers=_splits_layers(rules, wanted),
        more={
            name: found
            for name, values in _beside(task, devices, domain, layers, micros).items()
            if (found := beside(name, values))
        },
    )


def _beside(
    task: Task, devices: int, domain: int, layers: int, micros: Sequence[int]
) -> dict[str, Iterable[Any]]:
    """What choices may be beside what the grid has of them."""
    batch, dims = (
        task.workload.global_batch,
        {d for _, op in task.workload.model.ops() for d in op.size},
    )
    differs = task.runtime.supported_plans.per_layer != "none" or task.is_hypothetical
    orders = ["-".join(order) for order in permutations(AXES)] if devices > domain else []
    return {
        "micro": [n for n in _divisors_of(batch) if n not in micros and MICRO_BATCH.allows(n)],
        "recompute": SHARES if differs and layers > 1 else (),
        "vpp": range(2, min(MOST_CHUNKS, layers // 2) + 1),
        "shard": [n for n in _divisors(devices)[1:-1] if n != domain],
        "order": [order for order in orders if order != _STAGES_INSIDE],
        "cp-exchange": [one for one in EXCHANGES if one != "all-gather"] if "seq" in dims else (),
        "buckets": BUCKETS,
    }


def _is_left_open(rule: Rule) -> bool:
    """Replicas are what the other degrees leave, and layers are split last: no options to be narrowed."""
    return any(
        isinstance(one, Relation) or one.name in ("dp", "etp", "layers") for one in rule.needs
    )


def _splits_layers(rules: Sequence[Rule], wanted: Sequence[Constraint]) -> bool:
    """Whether layers may be split otherwise than they are placed without a word."""
    is_asked = any(one.name == "layers" for one in wanted)
    return not is_asked and all(one.values != ("even",) for one, _ in always(rules, "layers"))


def _searched(task: Task) -> list[str]:
    """Schedules to look at: all that the stack is said to have; of stacks that say nothing, and beside what a stack has in
    a hypothetical search, those that are looked at of any."""
    able = always(rules_of(task.runtime), "schedule")
    named = {v for c, _ in able if c.sign == "=" for v in c.values}
    of_any = not named or task.is_hypothetical
    return [n for n, kind in SCHEDULES.items() if n in named or (of_any and kind.is_searched)]


_LIMITS = {
    **dict.fromkeys(("tp", "pp", "dp", "cp", "ep"), DEVICES),
    "vpp": LAYERS,
    "micro": MICRO_BATCH,
}
_NEEDS = {
    "ep": ("expert",),
    "tp": ("heads", "ffn"),
    "cp": ("kv_seq",),
    "sp": ("seq",),
}
"""Choices that mean something only where a model has one of these dims."""


def _expect_meaning(wanted: Sequence[Constraint], dims: set[str], model: Model) -> None:
    """Refuse constraints that no plan of this model could heed."""
    faults = []
    for one in wanted:
        limit = _LIMITS.get(one.name)
        wrong = [v for v in one.values if limit and one.sign == "=" and not limit.allows(v)]
        faults += [f"{one.text}: {limit.fault(v)}" for v in wrong if limit]
        needs = _NEEDS.get(one.name, ())
        is_split = one.sign in ("=", ">", ">=") and any(value not in (0, 1) for value in one.values)
        if needs and is_split and not dims & {*needs}:
            faults.append(
                f"{one.text}: {model.name} has no {' or '.join(needs)} to split. Remove this constraint."
            )
        if one.name == "layers" and one.sign != "=":
            faults.append(
                f"{one.text}: say how layers are to be split: layers=24,8 or layers=even."
            )
        for value in one.values if one.name == "recompute" else ():
            faults += _unknown(value, model)
    if faults:
        raise PlanError("these constraints cannot be satisfied:", faults=faults)


def _unknown(recompute: str, model: Model) -> tuple[str, ...]:
    """What a choice names that the model does not have."""
    try:
        check_names(StrategyNode(recompute=recompute), model)
    except PlanError as error:
        return error.faults
    return ()


_STAGES_INSIDE = "tp-cp-pp-dp"


def _palette(option: Any, task: Task, domain: int) -> Palette:
    has_tables = any(op.name == LARGE for _, op in task.workload.model.ops())
    orders: dict[str, tuple[str, ...] | None] = {"default": None}
    if task.devices > domain:
        orders[_STAGES_INSIDE] = ("tp", "cp", "pp", "dp")
    picked = option("order", list(orders))
    for text in picked:
        orders.setdefault(text, tuple(text.split("-")))
    offloads = option("offload", ["none", "optimizer"])
    buckets = option("buckets", ["default"])
    return Palette(
        recompute=option("recompute", _recomputes(task)),
        schedule=option("schedule", _searched(task)),
        order=tuple(orders[text] for text in picked),
        offload=tuple(() if text == "none" else tuple(text.split("+")) for text in offloads),
        buckets=tuple(None if size == "default" else size for size in buckets),
        exchange=option("cp-exchange", [task.defaults.exchange]),
        tables=option("tables", ["replicated", "rows"] if has_tables else ["replicated"]),
        layers=tuple(map(_counts, option("layers", ["even"]))),
        defaults=task.defaults,
    )


def _recomputes(task: Task) -> list[str]:
    """What is usual, and what else the stack has."""
    model = task.workload.model
    has_sequence = any("seq" in op.size for _, op in model.ops())
    usual = ["none", "selective", "full"] if has_sequence else ["none", "full"]
    return usual + [word for word in task.runtime.plan.recomputes if not _unknown(word, model)]


def _counts(layers: str) -> tuple[int, ...] | None:
    return None if layers == "even" else tuple(map(int, layers.split(",")))


def _repeated(task: Task) -> int:
    """Layers that are shared out over stages: repetitions of blocks, or all blocks where none repeats."""
    blocks = task.workload.model.blocks
    return sum(b.repeat for b in blocks if b.repeat > 1) or len(blocks)


def _domain(task: Task) -> int:
    """Ranks joined by the fast links of one node or rack."""
    return int(np.bincount(np.asarray(task.cluster.domain_of)).max())


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def _divisors_of(count: int) -> list[int]:
    """… of large numbers, too."""
    small = [n for n in range(1, isqrt(count) + 1) if count % n == 0]
    return sorted({*small, *(count // n for n in small)})


def _chunks(layers: int, stages: Sequence[int]) -> list[int]:
    """Chunks that share layers out evenly on some number of stages; embedding and head may count as a layer each."""
    most = range(2, MOST_CHUNKS + 1)
    found = {vpp for pp in stages if pp > 1 for vpp in most if _is_even(layers, pp, vpp)}
    return sorted({1} | found)


def _is_even(layers: int, stages: int, chunks: int) -> bool:
    """Whether parts are alike (`compile.passes.place`)."""
    counted = layers if layers % stages == 0 else layers + 2
    return counted % (stages * chunks) == 0


def _context(task: Task, devices: int) -> list[int]:
    length = task.workload.seq_len or 1
    return [
        n
        for n in _divisors(devices)
        if n == 1 or (length % n == 0 and length // n >= SHORTEST_SLICE)
    ]


def _micros(batch: int) -> list[int]:
    """Powers of two that divide the batch; all divisors where it has few of those."""
    divisors = [n for n in range(1, min(batch, MOST_MICRO) + 1) if batch % n == 0]
    powers = [n for n in divisors if n & (n - 1) == 0]
    return powers if len(powers) >= FEWEST_POWERS else divisors


_FEW_LAYERS = "fewer layers than pipeline stages"
_UNEVEN = "layers not divisible by stages x chunks"


def _asked_for(name: str, wanted: Sequence[Constraint]) -> set[Any]:
    """Values that the user names one by one."""
    return {value for c in wanted if c.name == name and c.sign == "=" for value in c.values}


def _refused(
    task: Task, pps: Sequence[int], vpps: Sequence[int], asked: set[Any]
) -> dict[tuple[int, int], str]:
    """Pipelines that the model's layers cannot be shared out over; evenly, unless so many chunks were asked for."""
    refused = {}
    for pp, vpp in product(pps, vpps):
        if pp == 1:
            continue
        model, layers = task.workload.model, _repeated(task)
        if vpp > 1 and vpp not in asked and not _is_even(layers, pp, vpp):
            refused[pp, vpp] = _UNEVEN
            continue
        try:
            kind, _ = meant(None, pp, vpp)
            by_products = task.runtime.pipeline.places_by_products
            place(model, Schedule(kind.name, 1, pp, vpp), by_products)
        except PlanError:
            refused[pp, vpp] = _FEW_LAYERS
        if pp * vpp > layers + 2 * (vpp > 1):
            refused[pp, vpp] = _FEW_LAYERS
    return refused
