"""Why an offer stands where it stands, and why the others are none, in words."""

from __future__ import annotations

from collections.abc import Sequence

from foretrain.recommendation.choosing import is_knee_wanted, ranked
from foretrain.recommendation.evaluate import Miss
from foretrain.recommendation.job import Job
from foretrain.recommendation.offers import Offer, Terms
from foretrain.units import show_bytes

_LARGE = 0.1
"""Share of a step from which a stall is worth a word."""
_ALIKE = 0.01
_SEEN = 0.02

_CAUSES = {
    "interconnect": "is exposed communication inside the node",
    "network": "is exposed communication between nodes",
    "bubble": "is pipeline bubble",
    "host": "waits for the CPU to launch kernels",
    "prep": "waits for data preprocessing",
    "fetch": "waits for storage",
    "imbalance": "waits for the slowest rank",
    "optimizer": "is the parameter update",
}


def days(hours: float) -> str:
    """`3.2 h` below two days, `14.1 d` above; `30 s` below a minute."""
    if hours < 1 / 60:
        return f"{hours * 3600:.3g} s"
    if hours < 0.1:
        return f"{hours * 60:.1f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:,.1f} d"


def usd(amount: float) -> str:
    return f"${amount:,.0f}" if amount >= 100 else f"${amount:.2f}"


def why(one: Offer, offers: Sequence[Offer], job: Job) -> str:
    """`offers` are all that are feasible."""
    parts = [_place(one, offers, job), _cause(one)]
    waits = one.stalls.get("fetch", 0.0) > _SEEN * one.step_seconds
    if waits and job.data is not None and job.data.bytes and not one.feed.is_cached:
        held = one.candidate.node.host.memory_bytes
        parts.append(
            f"the data ({show_bytes(job.data.bytes)}) does not fit in host memory"
            + (f" ({show_bytes(held)})" if held else "")
            + ": every epoch reads storage"
        )
    started = one.startup_hours / one.hours
    if started >= _LARGE:
        parts.append(f"start-up is {100 * started:.0f} % of the time")
    if one.goodput < 0.95:
        lost = f"{100 * (1 - one.goodput):.0f} %"
        kind = "preemptions" if one.candidate.is_spot else "failures"
        parts.append(f"{kind} and checkpoints take {lost}")
    if job.deadline is not None and one.interval_hours[1] * 3600.0 > job.deadline:
        parts.append(f"may take up to {days(one.interval_hours[1])}, past the deadline")
    return "; ".join(part for part in parts if part)


def _place(one: Offer, offers: Sequence[Offer], job: Job) -> str:
    within = " within the deadline" if job.deadline is not None else ""
    within += " within the budget" if job.budget_usd is not None else ""
    if is_knee_wanted(job) and one is ranked(offers, job)[0]:
        return f"the knee{within}" + _neighbors(one, offers)
    if one is min(offers, key=lambda o: (o.usd, o.hours, o.name)):
        return f"cheapest{within}"
    if one is min(offers, key=lambda o: (o.hours, o.usd, o.name)):
        return f"fastest{within}"
    if one.is_best:
        return "Pareto-optimal: no cheaper offer is as fast"
    better = _better(one, offers)
    if better is None:
        return ""
    return f"{better.name} {_compared(one, better)}"


def _neighbors(one: Offer, offers: Sequence[Offer]) -> str:
    """What the next faster and the next cheaper offer of the front would change."""
    best = sorted((o for o in offers if o.is_best), key=lambda o: o.hours)
    faster = [o for o in best if o.hours < one.hours]
    cheaper = [o for o in best if o.hours > one.hours]
    text = ""
    if faster:
        o = faster[-1]
        text += f"; {o.name} takes {_less(o.hours, one.hours)} less time for {_more(o.usd, one.usd)} more money"
    if cheaper:
        o = cheaper[0]
        text += f"; {o.name} costs {_less(o.usd, one.usd)} less for {_more(o.hours, one.hours)} more time"
    return text


def _less(value: float, base: float) -> str:
    return f"{100 * (1 - value / base):.0f} %"


def _more(value: float, base: float) -> str:
    return f"{100 * (value / base - 1):.0f} %"


def _better(one: Offer, offers: Sequence[Offer]) -> Offer | None:
    """An offer that is no slower and no dearer: of as many devices of the same kind if there is one."""
    better = [o for o in offers if o is not one and o.usd <= one.usd and o.hours <= one.hours]
    if not better:
        return None
    device, size = one.candidate.node.devices[0].name, one.candidate.devices

    def unlike(o: Offer) -> tuple[bool, bool, float, str]:
        kind = o.candidate.node.devices[0].name != device
        return kind, o.candidate.devices != size, o.usd, o.name

    return min(better, key=unlike)


def _compared(one: Offer, better: Offer) -> str:
    """`is 5.1 × as fast for 20 % of the cost`."""
    faster, share = one.hours / better.hours, better.usd / one.usd if one.usd else 1.0
    speed = "is as fast" if faster < 1 + _ALIKE else f"is {faster:.1f} × as fast"
    if faster < 1.1 and faster >= 1 + _ALIKE:
        speed = f"is {100 * (faster - 1):.0f} % faster"
    if share > 1 - _ALIKE:
        return f"{speed} at the same cost"
    return f"{speed} for {100 * share:.0f} % of the cost"


def _cause(one: Offer) -> str:
    total = sum(one.stalls.values()) or 1.0
    name = max(_CAUSES, key=lambda stall: one.stalls.get(stall, 0.0))
    share = one.stalls.get(name, 0.0) / total
    if share >= _LARGE:
        return f"{100 * share:.0f} % of the step {_CAUSES[name]}"
    return f"{100 * one.stalls.get('compute', 0.0) / total:.0f} % of the step is compute"


def unfit(misses: Sequence[Miss], job: Job, terms: Terms) -> str:
    """Why an instance is offered in no number: what it came closest with."""
    late = [m for m in misses if m.kind == "late" and m.offer is not None]
    dear = [m for m in misses if m.kind == "dear" and m.offer is not None]
    if dear:
        return _dear(dear, late, job)
    if late:
        return _late(late, job, terms)
    lacking = [m for m in misses if m.nearest is not None]
    if lacking:
        return _lacking(lacking)
    slow = [m for m in misses if m.kind == "slow"]
    if slow:
        best = min(slow, key=lambda m: m.least_hours)
        return (
            f"too slow: {best.candidate.count} x would take {days(best.least_hours)} even at "
            f"peak FLOP/s{_limit(job)}."
        )
    return f"no plan: {misses[-1].reason}" if misses else "not evaluated."


def _limit(job: Job) -> str:
    return "" if job.deadline is None else f", the deadline is {days(job.deadline / 3600.0)}"


def _offer_of(miss: Miss) -> Offer:
    assert miss.offer is not None
    return miss.offer


def _dear(dear: Sequence[Miss], late: Sequence[Miss], job: Job) -> str:
    best = min(map(_offer_of, dear), key=lambda o: o.usd)
    text = f"too expensive: {best.name} with '{best.plan}' costs {usd(best.usd)}"
    text += f" in {days(best.hours)}, the budget is {usd(job.budget_usd or 0.0)}"
    return text + (" (fewer are too slow)." if late else ".")


def _late(late: Sequence[Miss], job: Job, terms: Terms) -> str:
    best = min(map(_offer_of, late), key=lambda o: o.hours)
    text = f"too slow: {best.name} with '{best.plan}' takes {days(best.hours)}{_limit(job)}"
    if best.candidate.node.nics is None:
        return text + "; its network is unknown, so multi-node clusters are not offered."
    if 2 * best.candidate.devices > terms.most_devices:
        return text + f" (more than {terms.most_devices:,} devices were not tried)."
    return text + ("." if terms.quotas else f" (more than {terms.most_machines} need a quota).")


def _lacking(lacking: Sequence[Miss]) -> str:
    best = min(lacking, key=lambda miss: miss.fill)
    nearest = best.nearest
    assert nearest is not None
    return (
        f"does not fit: on {best.candidate.count} x, the plan with the least memory, "
        f"'{nearest.plan}', needs {show_bytes(nearest.memory)}, but {show_bytes(nearest.usable)} is "
        "usable per device."
    )
