"""How many devices would do where the limit on devices is what keeps a job from its deadline or from memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from foretrain.recommendation.evaluate import Look, Miss
from foretrain.recommendation.offers import Candidate, Offer, least_hours
from foretrain.recommendation.reasons import days, usd

MOST_DEVICES = 2**17
_LOOKED_AT = 4
"""Kinds of machines that are looked at: those that need the fewest devices by their data sheets."""


def enough_devices(look: Look, misses: Sequence[Miss]) -> str:
    """The least `--max-devices` that would do, with what it would take and cost; empty where more are no help."""
    found = []
    for candidate in _promising(look, misses):
        enough = _enough(look, candidate)
        if enough is not None:
            found.append(enough)
    if not found:
        return ""
    best = min(found, key=lambda o: (o.candidate.devices, o.usd))
    return (
        f"{best.candidate.devices:,} devices would do: {best.name} with '{best.plan}' takes {days(best.hours)} and costs "
        f"{usd(best.usd)} by estimate (--max-devices {best.candidate.devices})."
    )


def _promising(look: Look, misses: Sequence[Miss]) -> Iterator[Candidate]:
    """The largest clusters that were looked at, of kinds that the limit on devices holds back."""
    largest: dict[str, Candidate] = {}
    for miss in misses:
        if miss.kind in ("late", "slow", "memory"):
            one, known = miss.candidate, largest.get(miss.candidate.instance)
            if known is None or known.count < one.count:
                largest[one.instance] = one
    terms = look.terms
    held = [
        one
        for one in largest.values()
        if one.node.nics is not None
        and not _has_quota(look, one)
        and _is_full(one, terms.most_devices)
    ]
    held.sort(
        key=lambda one: (least_hours(look.job, one) * one.devices, one.usd_per_hour / one.devices)
    )
    kinds: dict[object, Candidate] = {}
    for one in held:
        kinds.setdefault(one.hardware, one)
    yield from list(kinds.values())[:_LOOKED_AT]


def _has_quota(look: Look, one: Candidate) -> bool:
    return look.terms.has_quota(one.instance)


def _is_full(one: Candidate, most: int) -> bool:
    return 2 * one.devices > most


def _enough(look: Look, one: Candidate) -> Offer | None:
    """The first doubling of a cluster that is an offer."""
    each = one.usd_per_hour / one.count
    count = 2 * one.count
    while count * one.node.device_count <= MOST_DEVICES:
        if look.job.batch_on(count * one.node.device_count) < count:
            return None
        outcome = look.estimated(replace(one, count=count, usd_per_hour=each * count))
        if isinstance(outcome, Offer):
            return outcome
        if outcome.kind in ("refused", "dear"):
            return None
        count *= 2
    return None
