"""Moves: plans that differ from one in a single choice, as far as the stack can run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from typing import Any

import numpy as np

from foretrain.compile.passes.place import layer_blocks, place
from foretrain.errors import InputError, PlanError
from foretrain.limits import BUCKET
from foretrain.plan.parallelism import LARGE
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import SCHEDULES, meant
from foretrain.plan.short_form import Words, said, schedule_of
from foretrain.plan.strategy import EXCHANGES, OFFLOADS, Schedule
from foretrain.plan.supported import always, refusals, rules_of
from foretrain.plan.words import DEGREES, FLAGS
from foretrain.planning.task import Task
from foretrain.resolving.defaults import stack_for
from foretrain.scenario import Scenario

MOST_MICROS = 12
MOST_CHUNKS = 16
SHORTEST_SLICE = 512
"""Tokens of a sequence that a move to context parallelism leaves a rank at least."""
SHARES = tuple(f"full*{part / 8:g}" for part in range(1, 8))
BUCKET_STEP = 4.0
BY_NODES = ("tp", "cp", "pp", "dp")
"""The order of ranks, innermost first, that puts stages inside of replicas."""


@dataclass(frozen=True, slots=True)
class Move:
    """One change of a scenario: in words, as options of a command to paste, and what it leads to."""

    change: str
    paste: str
    scenario: Scenario
    kind: str = "plan"
    words: Words | None = None  # of its plan, where it has a short form
    remark: str = ""


@dataclass(frozen=True)
class Place:
    """Where moves start from; `origin`: the plan that was asked about, where others were made of it on the way."""

    scenario: Scenario
    origin: Scenario | None = None

    @cached_property
    def task(self) -> Task:
        return Task.of(self.scenario)

    @cached_property
    def words(self) -> Words:
        """Of the plan, with its micro-batch."""
        plan = self.scenario.plan
        return replace(self.task.words(plan.text), micro=plan.schedule.micro_batch)

    def is_assumed(self, option: str) -> bool:
        """Whether a question left this open, so that it may come out otherwise when others change."""
        return any(line.endswith(f"({option})") for line in self.scenario.assumptions)

    @cached_property
    def pinned(self) -> str:
        """Options that say what a question left open, for changes of something else: with a space before them."""
        plan, micro = self.scenario.plan, self.scenario.plan.schedule.micro_batch
        has_plan = bool(plan.text) and self.is_assumed("--plan")
        told = f' --plan "{plan.text}" --micro-batch {micro}' if has_plan else ""
        if not told and self.is_assumed("--micro-batch"):
            told = f" --micro-batch {micro}"
        return told + self.pinned_batch

    @cached_property
    def pinned_batch(self) -> str:
        return f" --batch {self.batch}" if self.is_assumed("--batch") else ""

    def pasted(self, plan: Plan, micro: int) -> str:
        """A plan as options, with the stack where another would be taken for it."""
        model, cluster = self.scenario.workload.model, self.scenario.cluster
        usual, _ = stack_for(model, cluster, said(plan.text))
        stack = self.scenario.runtime.name
        named = "" if usual == stack else f" --runtime {stack}"
        return f'--plan "{plan.text}" --micro-batch {micro}{named}{self.pinned_batch}'

    @cached_property
    def known_refusals(self) -> frozenset[str]:
        """What the stack cannot run of the plan itself: moves may keep it, and add nothing to it."""
        return frozenset(refusals(self.scenario.runtime, self.words, self.task.facts))

    @cached_property
    def ops(self) -> tuple[Any, ...]:
        return tuple(op for _, op in self.scenario.workload.model.ops())

    @cached_property
    def domain(self) -> int:
        """Ranks joined by the fast links of one node or rack."""
        return int(np.bincount(np.asarray(self.scenario.cluster.domain_of)).max())

    def has_layers(self, stages: int, chunks: int) -> bool:
        """Whether the model has layers for all parts of a pipeline."""
        model, pipeline = self.scenario.workload.model, self.scenario.runtime.pipeline
        schedule = Schedule(meant(None, stages, chunks)[0].name, 1, stages, chunks)
        try:
            place(model, schedule, pipeline.places_by_products)
        except PlanError:
            return False
        return True

    @property
    def batch(self) -> int:
        return self.scenario.workload.global_batch

    @cached_property
    def layers(self) -> int:
        """Layers that stages share out."""
        blocks = self.scenario.workload.model.blocks
        return sum(b.repeat for b in blocks if b.repeat > 1) or len(blocks)

    def parts(self, words: Words) -> tuple[int, ...]:
        """Layers of every piece of the model."""
        model = self.scenario.workload.model
        main = layer_blocks(model)
        by_products = self.scenario.runtime.pipeline.places_by_products
        placed = place(model, schedule_of(words), by_products)
        return tuple(sum(block in main for block, _ in piece) for piece in placed)


# --- plans that differ in one choice ----------------------------------------------------------------

Neighbours = Iterator[dict[str, Any]]
"""Words to change, one move each."""


def _micro_batches(words: Words, at: Place) -> Neighbours:
    now, each = words.micro or 1, at.batch // (words.dp or 1)
    sizes = [n for n in divisors(each) if n != now]
    near = sorted(sizes, key=lambda n: (max(n, now) / min(n, now), n))[:MOST_MICROS]
    yield from ({"micro": size} for size in dict.fromkeys([*near, *sizes[:1]]))


def _sequence_parallelism(words: Words, at: Place) -> Neighbours:
    if words.tp > 1 and any("seq" in op.size for op in at.ops):
        yield {"sp": not words.sp}


def _states(words: Words, at: Place) -> Neighbours:
    if (words.dp or 1) * words.cp > 1:
        yield from ({"zero": stage} for stage in range(4))


def _shard_groups(words: Words, at: Place) -> Neighbours:
    if words.shard:
        yield {"shard": None}
    elif words.zero and 1 < at.domain < (words.dp or 1) * words.cp:
        yield {"shard": at.domain}


def _recomputation(words: Words, at: Place) -> Neighbours:
    kinds = ["none", "selective", "full"]
    if at.scenario.runtime.supported_plans.per_layer != "none":
        kinds += SHARES
    yield from ({"recompute": kind} for kind in kinds)


def _chunks(words: Words, at: Place) -> Neighbours:
    if words.pp == 1:
        return
    # embedding and head may count as a layer each (`compile.passes.place`)
    most = min(MOST_CHUNKS, (at.layers + 2) // words.pp)
    yield from ({"vpp": n, "schedule": None, "layers": None} for n in range(1, most + 1))


def _layers(words: Words, at: Place) -> Neighbours:
    """Stages at the ends hold embedding and head besides: one layer less there, one more where there are fewest."""
    if words.layers is not None:
        yield {"layers": None}
    if words.pp == 1:
        return
    counts = at.parts(words)
    for giver in (0, len(counts) - 1):
        others = [n for n in range(len(counts)) if n != giver]
        taker = min(others, key=lambda n: (counts[n], n in (0, len(counts) - 1), n))
        if counts[giver] > 1:
            given = {giver: counts[giver] - 1, taker: counts[taker] + 1}
            yield {"layers": tuple(given.get(n, count) for n, count in enumerate(counts))}


def _degrees(words: Words, at: Place) -> Neighbours:
    """Model parallelism for replicas, and the other way round."""
    dp = words.dp or 1
    for name in ("tp", "pp", "cp"):
        now, most = getattr(words, name), _most(name, at)
        grows = (f for f in divisors(dp)[1:] if now * f <= most)
        yield from ({name: now * f, "dp": dp // f} for f in grows)
        yield from ({name: now // f, "dp": dp * f} for f in divisors(now)[1:])


def _exchanges_of_degrees(words: Words, at: Place) -> Neighbours:
    """One degree for another, stages and slices of the sequence among them; replicas stay."""
    for one, other in permutations(("tp", "pp", "cp"), 2):
        less, more = getattr(words, one), getattr(words, other)
        shifts = (f for f in divisors(less)[1:] if more * f <= _most(other, at))
        yield from ({one: less // f, other: more * f} for f in shifts)


def _experts(words: Words, at: Place) -> Neighbours:
    experts = max((op.size.get("expert", 1) for op in at.ops), default=1)
    ranks = (words.dp or 1) * words.cp * words.tp
    yield from ({"ep": degree} for degree in divisors(experts) if ranks % degree == 0)


def _buckets(words: Words, at: Place) -> Neighbours:
    gradients = at.scenario.runtime.gradients
    if (words.dp or 1) * words.cp == 1 or not gradients.overlaps_gradients:
        return
    now = words.buckets or gradients.bucket_bytes
    for size in (now * BUCKET_STEP, now / BUCKET_STEP):
        whole = round(size / 1e6) * 1e6
        if whole and BUCKET.allows(whole):
            yield {"buckets": whole}
    if words.buckets is not None:
        yield {"buckets": None}


def _offload(words: Words, at: Place) -> Neighbours:
    for count in range(len(OFFLOADS) + 1):
        yield from ({"offload": some} for some in combinations(OFFLOADS, count))


def _schedules(words: Words, at: Place) -> Neighbours:
    if words.pp == 1:
        return
    named = {v for c, _ in always(rules_of(at.scenario.runtime), "schedule") for v in c.values}
    for name, kind in SCHEDULES.items():
        if not (kind.is_searched or name in named):
            continue
        found, chunks = meant(name, words.pp, words.vpp if words.vpp in kind.chunks else 1)
        if found is kind and chunks in kind.chunks:
            layers = words.layers if chunks == words.vpp else None
            yield {"schedule": name, "vpp": chunks, "layers": layers}


def _orders(words: Words, at: Place) -> Neighbours:
    if words.order is not None:
        yield {"order": None}
    elif words.pp > 1 and (words.dp or 1) > 1 and at.task.devices > at.domain:
        yield {"order": BY_NODES}


def _context_exchange(words: Words, at: Place) -> Neighbours:
    if words.cp > 1:
        yield from ({"exchange": how} for how in EXCHANGES)


def _tables(words: Words, at: Place) -> Neighbours:
    if (words.dp or 1) > 1 and any(op.name == LARGE for op in at.ops):
        yield from ({"tables": how} for how in ("replicated", "rows"))


CHOICES: Sequence[Callable[[Words, Place], Neighbours]] = (
    _micro_batches, _sequence_parallelism, _states, _shard_groups, _recomputation, _chunks, _layers, _degrees,
    _exchanges_of_degrees, _experts, _buckets, _offload, _schedules, _orders, _context_exchange, _tables,
)  # fmt: skip


def plan_moves(at: Place) -> Iterator[Move]:
    """Every plan that is one move away, by its words; of a strategy tree none."""
    if not at.scenario.plan.text:
        return
    seen = {at.task.text(at.words)}
    for choice in CHOICES:
        for changes in choice(at.words, at):
            words = _settled(replace(at.words, **changes), changes, at)
            if words is not None and (text := at.task.text(words)) not in seen:
                seen.add(text)
                move = _move(words, at)
                if move is not None:
                    yield move


def _settled(words: Words, changes: Mapping[str, Any], at: Place) -> Words | None:
    """The plan with what follows from a change; None where the stack, the batch or the schedule has no such plan."""
    before, defaults = at.words, at.task.defaults
    dp = words.dp or 1
    if words.tp == 1 or before.tp == 1:
        words = replace(words, sp=words.sp if words.tp == before.tp else defaults.sp_of(words))
    if dp * words.cp == 1:
        words = replace(words, zero=0, shard=None)
    elif (before.dp or 1) * before.cp == 1 and "zero" not in changes:
        words = replace(words, zero=defaults.zero_of(words))
    if words.zero == 0:
        words = replace(words, shard=None)
    if words.pp != before.pp:
        words = replace(words, layers=None, **_chunks_kept(words, at))
    if at.batch % dp:
        return None
    if at.batch // dp % (words.micro or 1):
        sizes = divisors(at.batch // dp)
        words = replace(words, micro=max(n for n in sizes if n <= (words.micro or 1)))
    if not _is_able(words, at):  # what a stack splits in pipelines is not what it splits elsewhere
        words = replace(words, zero=defaults.zero_of(words), shard=None)
        if "zero" in changes or "shard" in changes or not _is_able(words, at):
            return None
    count = at.batch // (dp * (words.micro or 1))
    kind, chunks = meant(words.schedule, words.pp, words.vpp)
    if words.pp == 1:
        return words
    return words if kind.fits(words.pp, count) and at.has_layers(words.pp, chunks) else None


def _chunks_kept(words: Words, at: Place) -> dict[str, Any]:
    if words.pp == 1:
        return {"vpp": 1, "schedule": None, "order": None}
    if words.vpp > 1 and at.layers % (words.pp * words.vpp):
        return {"vpp": 1, "schedule": at.task.defaults.schedule_of(replace(words, vpp=1))}
    if at.words.pp == 1:
        return {"schedule": at.task.defaults.schedule_of(words)}
    return {}


def _is_able(words: Words, at: Place) -> bool:
    return at.known_refusals.issuperset(refusals(at.scenario.runtime, words, at.task.facts))


def _move(words: Words, at: Place) -> Move | None:
    scenario = at.scenario
    alone = replace(words, micro=None)
    try:
        plan = Plan.of(
            alone,
            devices=at.task.devices,
            runtime=scenario.runtime,
            defaults=at.task.defaults,
            micro_batch=words.micro,
        )
    except InputError:
        return None
    first = Place(at.origin or scenario)
    change = difference(first.task.text(first.words), at.task.text(words))
    paste = at.pasted(plan, plan.schedule.micro_batch)
    return Move(change, paste, replace(scenario, plan=plan), words=words)


def difference(before: str, after: str) -> str:
    """What a plan's text has that another had not, and what it has no more."""
    old, new = before.split(), after.split()
    named = {_name(word) for word in new}
    gone = [word for word in old if word not in new and _name(word) not in named]
    more = [_spoken(word) for word in new if word not in old]
    return " ".join([*more, *(_absent(word) for word in gone)])


def _spoken(word: str) -> str:
    return f"micro-batch {word[6:]}" if word.startswith("micro=") else word


def _name(word: str) -> str:
    """The choice that a word makes."""
    if word in FLAGS:
        return "sp"
    return "schedule" if word in SCHEDULES else word.partition("=")[0].rstrip("0123456789")


def _absent(word: str) -> str:
    """`pp1` where there was a pp4."""
    name = _name(word)
    if name == "zero":
        return "zero0"
    return f"{name}1" if name in DEGREES else f"without {word}"


def _most(name: str, at: Place) -> int:
    """A degree that a model, its layers or its sequence allow at most; whether a value divides them the compiler says."""
    dims = {dim for op in at.ops for dim in op.size}
    match name:
        case "tp":
            return at.domain if {"heads", "ffn"} & dims else 1
        case "pp":
            return at.layers
    return max(1, (at.scenario.workload.seq_len or 1) // SHORTEST_SLICE) if "kv_seq" in dims else 1


def divisors(count: int) -> list[int]:
    small = [n for n in range(1, int(count**0.5) + 1) if count % n == 0]
    return sorted({*small, *(count // n for n in small)})
