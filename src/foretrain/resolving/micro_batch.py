"""Batches: the global one in samples, and the micro-batch where none is given: what a practitioner would take, the
largest that fits.

In a pipeline it grows only as long as enough micro-batches are left to keep the bubble small.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil

from foretrain.analysis.prediction import Memory
from foretrain.errors import InputError
from foretrain.model.graph import Model
from foretrain.plan.facts import facts_of, family_of
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import SCHEDULES
from foretrain.plan.supported import able_micro
from foretrain.resolving.defaults import defaults, surely
from foretrain.resolving.draft import Draft
from foretrain.resolving.request import Notes
from foretrain.units import multiples_near, parse_batch, show_count

MOST_LISTED = 1 << 20
"""Samples of a replica whose divisors are looked at one by one."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    samples: int
    why: str
    fits: bool
    needed_bytes: float = 0.0  # of a device, where it does not fit


def largest_that_fits(draft: Draft, plan: Plan, batch: int | None) -> MicroBatch:
    """The largest micro-batch of a plan that surely fits; where not even the smallest does, that fits at all."""
    sizes, limit = _sizes(draft, plan, batch)

    @cache
    def memory(samples: int) -> Memory:
        whole = batch if batch is not None else default_batch(plan, samples)
        return draft.memory(plan, whole, samples)

    if _surely_fits(memory(sizes[-1])):  # as does any smaller one
        return MicroBatch(sizes[-1], limit, True)
    smallest = memory(sizes[0])
    if not smallest.fits:
        why = "the smallest possible" if len(sizes) > 1 else limit
        return MicroBatch(sizes[0], why, False, smallest.total_bytes)
    least = surely() if _surely_fits(smallest) else 0.0

    def fits(samples: int) -> bool:
        return memory(samples).fits and memory(samples).fits_probability >= least

    if fits(sizes[-1]):
        return MicroBatch(sizes[-1], limit, True)
    low, high = 0, len(sizes) - 1  # the first fits, the last does not
    while high - low > 1:
        samples = _guessed(sizes[low], memory(sizes[low]), sizes[high], memory(sizes[high]))
        middle = min(max(bisect_right(sizes, samples) - 1, low + 1), high - 1)
        low, high = (middle, high) if fits(sizes[middle]) else (low, middle)
    sure = (
        f"fits with a probability of at least {100 * least:.0f} %" if least else "is likely to fit"
    )
    return MicroBatch(sizes[low], f"the largest that {sure}", True)


def _guessed(low: int, below: Memory, high: int, above: Memory) -> float:
    """Samples that just fit, if memory grows evenly from a size that fits to one that does not."""
    (_, least), (_, most) = below.interval, above.interval
    share = (below.usable_bytes - least) / (most - least) if most > least else 0.5
    return low + share * (high - low)


def _surely_fits(memory: Memory) -> bool:
    return memory.fits and memory.fits_probability >= surely()


def default_batch(plan: Plan, micro: int) -> int:
    """One micro-batch for every replica, or a few for every stage of a pipeline."""
    stages = plan.schedule.stages
    passes = int(defaults()["micro_batch"]["passes_per_stage"]) * stages if stages > 1 else 1
    return plan.replicas * micro * passes


def _sizes(draft: Draft, plan: Plan, batch: int | None) -> tuple[Sequence[int], str]:
    """Micro-batches from the smallest, and why there are no larger ones."""
    row = defaults()["micro_batch"]
    if batch is None:
        length = draft.model.seq_len
        most = int(row["samples"]) if length is None else max(1, int(row["tokens"]) // length)
        return [1 << power for power in range(most.bit_length())], "a common size per device"
    if batch % plan.replicas:
        raise InputError(
            f"global batch {batch:,} is not divisible by {plan.replicas:,} replicas. Try a global batch of "
            f"{multiples_near(batch, plan.replicas)}, or a plan with fewer replicas."
        )
    each = batch // plan.replicas
    if family_of(draft.model) in row["whole"]:
        return [each], (
            "all samples of a replica, since such models do not use gradient accumulation"
        )
    is_able = able_micro(draft.runtime, plan, facts_of(draft.scenario(plan, batch, each).workload))
    every = _divisors(each)
    every = [n for n in every if is_able(n)] or every  # where no size is, the prediction says so
    stages, chunks = plan.schedule.stages, plan.schedule.chunks
    if stages == 1:
        return every, "all samples of a replica"
    wanted = int(row["per_stage"]) * stages / chunks
    enough = [n for n in every if each // n >= wanted and _is_legal(plan, each // n)]
    if not enough:
        return every[:1], "the most micro-batches possible, for a small pipeline bubble"
    return enough, "the largest that keeps the pipeline bubble small"


def _is_legal(plan: Plan, passes: int) -> bool:
    """Whether the schedule can run so many micro-batches."""
    return bool(SCHEDULES[plan.schedule.kind].fits(plan.schedule.stages, passes))


def _divisors(count: int) -> list[int]:
    if count > MOST_LISTED:
        return [1 << power for power in range(count.bit_length()) if count % (1 << power) == 0]
    small = [n for n in range(1, int(count**0.5) + 1) if count % n == 0]
    return sorted({*small, *(count // n for n in small)})


# --- the global batch, as asked for ------------------------------------------------------------------


def samples_of(asked: int | str, model: Model, notes: Notes) -> int:
    """Samples of a global batch as it was asked for: `512`, `"4Mtok"`."""
    count, unit = parse_batch(asked)
    if unit == "tokens":
        if model.seq_len is None:
            raise InputError(
                f"batch {asked}: {model.name} has no tokens. Specify the batch in samples."
            )
        count = _of_tokens(count, model.seq_len, asked, notes)
    if count < 1:
        raise InputError(f"global batch {asked} is not a positive whole number.")
    tokens = count * (model.seq_len or 0)
    if tokens > defaults()["batch"]["most_tokens"]:
        if str(asked).strip()[-1] in "kKMGBT":  # 4M: no batch of samples is written so
            raise InputError(
                f"batch {asked}: {count:,} samples are {show_count(tokens)} tokens per step, more than any published run."
                f" Write {asked}tok for tokens, or '{asked} samples'."
            )
        notes.warn(
            f"a global batch of {count:,} samples is {show_count(tokens)} tokens per step. "
            f"If you meant tokens, write '{asked} tokens'."
        )
    return count


def shared_batch(batch: int, micro: int | None, replicas: int) -> tuple[int, tuple[str, ...]]:
    """The batch of a run, or the next larger one that its replicas can share out, with a word about it. A run may drop
    or repeat samples at the end; a question must say what it means."""
    each = (micro or 1) * replicas
    if batch % each == 0:
        return batch, ()
    rounded = ceil(batch / each) * each
    return rounded, (
        f"global batch {batch} is not divisible by micro-batch {micro or 1} x {replicas} replicas; "
        f"predicting {rounded} instead.",
    )


def _of_tokens(tokens: int, length: int, asked: int | str, notes: Notes) -> int:
    """Of a batch in tokens. 4M is 4 x 1,024 x 1,024 where that is a number of samples and four million is not, as
    batches are mostly powers of two."""
    for power in (3, 2, 1):
        if tokens % length and tokens % 1000**power == 0:
            binary = tokens // 1000**power * 1024**power
            if binary % length == 0:
                what = f"batch {asked} = {binary:,} tokens"
                notes.assume(what, f"a multiple of {length:,}", "--batch")
                return binary // length
    samples = max(1, round(tokens / length))
    if samples * length != tokens:
        notes.warn(
            f"batch {asked} is not a multiple of the sequence length ({length:,} tokens); rounded to {samples:,} samples."
        )
    return samples
