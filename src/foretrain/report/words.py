"""What every renderer says, worded once: the headline, labels, cleaned text and sorted rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from foretrain.analysis.memory_words import memory_interval, memory_verdict, probability
from foretrain.analysis.memory_words import usable as usable
from foretrain.analysis.prediction import MEMORY_KINDS, STALLS, Memory, Prediction, Remedy
from foretrain.units import alike, rounded_seconds, show_bytes, show_count

STALL_MEANING = {
    "compute": "kernels running",
    "interconnect": "exposed communication inside a node",
    "network": "exposed communication between nodes",
    "bubble": "pipeline bubble (fill and drain)",
    "host": "waiting for the CPU to launch kernels",
    "prep": "waiting for data preparation",
    "fetch": "waiting for storage",
    "imbalance": "waiting for the slowest rank",
    "optimizer": "parameter update",
}

_ASKED = (
    "model", "cluster", "plan", "global_batch", "micro_batch", "seq_len", "precision", "optimizer", "runtime",
)  # fmt: skip
seconds = rounded_seconds
seconds_alike = alike
_SHORT = {"global_batch": "batch", "micro_batch": "micro-batch", "seq_len": "seq"}


MAX_PATH_ROWS = 20
SURE = 0.9
"""Probability of fitting below which a headline tells it."""


def clean(text: object, limit: int = 400) -> str:
    """One printable line: names come from users and may hold control characters or half surrogates."""
    shown = str(text)
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else " " for c in shown)
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def clean_lines(text: str) -> str:
    """The same of each line."""
    return "\n".join(map(clean, text.split("\n")))


def devices(prediction: Prediction) -> int:
    """How many devices take part: as asked, else the ranks the timeline stands for."""
    asked = prediction.question.get("devices")
    if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
        return asked
    ranks = {lane.rank_class: lane.ranks for lane in prediction.timeline.lanes}
    return max(1, sum(ranks.values()))


def percent(share: float | None) -> str:
    """`44 %`, with a decimal below ten."""
    if share is None or not math.isfinite(share):
        return "unknown"
    if share == 0:
        return "0 %"
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{share * 100:.1f} %" if abs(share) < 0.0995 else f"{share * 100:.0f} %"


def times(factor: float) -> str:
    """`1.31×`; what is far slower is not `0.00×`."""
    return f"{factor:.2f}×" if factor >= 0.005 else "<0.01×"


def interval(prediction: Prediction) -> str:
    """`18.1–23.9 s`, both ends in one unit."""
    return between(*map(seconds, prediction.interval))


def between(low: str, high: str) -> str:
    """`18.1–23.9 s`: the unit once where both have it."""
    number, _, unit = low.partition(" ")
    return f"{number}–{high}" if high.endswith(f" {unit}") else f"{low} – {high}"


def of_memory(prediction: Prediction) -> str:
    """`61.2 of 77.7 GiB usable`, both in one unit."""
    memory = prediction.memory
    peak, room = show_bytes(memory.peak_bytes), show_bytes(memory.usable_bytes)
    number, _, unit = peak.partition(" ")
    return f"{number if room.endswith(f' {unit}') else peak} of {room} usable"


def verdict(prediction: Prediction) -> str:
    """`fits: 30.1 GiB (28.9–31.4) of 77.7 GiB usable (79.2 GiB minus 1.5 GiB driver and libraries), probability > 99 %`."""
    return memory_verdict(prediction.memory)


def memory_note(memory: Memory) -> str:
    """`28.9–31.4, of 77.7 GiB usable, fits with > 99 %`, beside the peak."""
    sure = probability(memory.fits_probability)
    return f"{memory_interval(memory)}, of {usable(memory)}; probability of fitting {sure}"


def rate(prediction: Prediction) -> str:
    """Tokens per second and device where there are tokens, else samples per second."""
    if prediction.tokens_per_second is not None:
        each = prediction.tokens_per_second / devices(prediction)
        return f"{amount(each)} tokens/s/device"
    return f"{amount(prediction.samples_per_second)} samples/s"


def amount(value: float) -> str:
    """Three digits below a hundred."""
    if not math.isfinite(value):
        return "unknown"
    return show_count(value) if value >= 100 else f"{value:#.3g}".rstrip(".")


def headline(prediction: Prediction) -> str:
    """The decision in one sentence."""
    parts = [
        f"{seconds(prediction.step_seconds)} per step ({interval(prediction)})",
        rate(prediction),
    ]
    if prediction.mfu is not None:
        parts.append(f"MFU {percent(prediction.mfu)}")
    verdict = "fits" if prediction.fits else "DOES NOT FIT"
    if prediction.fits and prediction.memory.fits_probability < SURE:
        verdict = f"fits ({probability(prediction.memory.fits_probability)} likely)"
    parts.append(f"{verdict}: {of_memory(prediction)}")
    return ", ".join(parts)


def asked(prediction: Prediction) -> str:
    """Configuration in one line: `llama3-8b on 2 x dgx-h100 · tp4 pp2 · batch 256 …`."""
    return asked_line(prediction.question)


def asked_line(question: Mapping[str, Any]) -> str:
    """The same of a question."""
    words = [clean(question.get("model", "model"))]
    if question.get("cluster") is not None:
        words[0] += f" on {clean(question['cluster'])}"
    for key in ("plan", "global_batch", "micro_batch", "seq_len", "precision", "runtime"):
        value = question.get(key)
        if value is None or value == "":
            continue
        shown = f"{value:,}" if isinstance(value, int) else clean(value)
        words.append(f"{_SHORT[key]} {shown}" if key in _SHORT else shown)
    return " · ".join(words)


def names(prediction: Prediction) -> tuple[str, ...]:
    """What people copy out of a report, and no line may break."""
    values = (prediction.question.get(key) for key in ("model", "cluster", "plan"))
    return tuple(clean(name) for name in values if name)


def question_rows(prediction: Prediction) -> list[tuple[str, str]]:
    """All that was asked, the usual keys first."""
    question = prediction.question
    keys = [key for key in _ASKED if key in question]
    keys += [key for key in question if key not in _ASKED]
    return [
        (clean(key, 60).replace("_", " "), _value(question[key]))
        for key in keys
        if question[key] is not None
    ]


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(name, 60)} {_value(one)}" for name, one in value.items())
    grouped = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if grouped else clean(value)


def stall_rows(stalls: Mapping[str, float], step: float) -> list[tuple[str, float, float]]:
    """(stall, seconds, share of the step), greatest first; those of no length are left out."""
    rows = sorted(((name, stalls.get(name, 0.0)) for name in STALLS), key=lambda row: -row[1])
    return [(name, value, value / (step or 1.0)) for name, value in rows if value > step * 5e-5]


def remedy_rows(prediction: Prediction) -> list[tuple[Remedy, str]]:
    """What would help, each with its step."""
    steps = alike(remedy.step_seconds for remedy in prediction.what_would_help)
    return list(zip(prediction.what_would_help, steps, strict=True))


def path_rows(prediction: Prediction) -> list[tuple[str, int, int, float]]:
    """(what, stage, how often, seconds in all) along the critical path, greatest first."""
    totals: dict[tuple[str, int], tuple[int, float]] = {}
    for step in prediction.critical_path:
        count, total = totals.get((step.what, step.stage), (0, 0.0))
        totals[step.what, step.stage] = (count + 1, total + step.end - step.start)
    ranked = sorted(totals.items(), key=lambda row: -row[1][1])
    return [(clean(what), stage, *sums) for (what, stage), sums in ranked[:MAX_PATH_ROWS]]


def path_note(prediction: Prediction) -> str:
    """How much of the step the path that was kept explains."""
    covered = sum(step.end - step.start for step in prediction.critical_path)
    return (
        f"{len(prediction.critical_path):,} segments, {seconds(covered)} of the "
        f"{seconds(prediction.step_seconds)} step."
    )


def kinds(prediction: Prediction) -> list[str]:
    """Memory kinds in use: the usual order, then any other."""
    tables = [prediction.memory.by_kind, *(stage.by_kind for stage in prediction.memory.by_stage)]
    names = dict.fromkeys([*MEMORY_KINDS, *(kind for by_kind in tables for kind in by_kind)])
    return [name for name in names if any(by_kind.get(name, 0.0) > 0 for by_kind in tables)]


def money(prediction: Prediction) -> str | None:
    """`$1,240 per hour, $0.28 per step (prices as of 2025-11-01)`, or None without a price."""
    cost = prediction.cost
    parts = []
    if cost.usd_per_hour is not None:
        parts.append(f"{usd(cost.usd_per_hour)} per hour")
    if cost.usd_per_step is not None:
        parts.append(f"{usd(cost.usd_per_step)} per step")
    if not parts:
        return None
    dated = f" (prices as of {clean(cost.price_date, 40)})" if cost.price_date else ""
    return ", ".join(parts) + dated


def duration(value: float) -> str:
    """As `seconds`, for a whole job; one that failures never let end says so."""
    return seconds(value) if math.isfinite(value) else "never completes"


def durations(values: Iterable[float]) -> tuple[str, ...]:
    """The same of jobs that are compared, in one unit."""
    return alike(values, duration)


def job_rows(prediction: Prediction) -> list[tuple[str, str]]:
    """(what, how much) of the whole job; empty where none was asked for."""
    job = prediction.job
    if job is None:
        return []
    risk = job.interruptions
    likely = between(*map(duration, job.interval_seconds))
    every = f"{seconds(risk.checkpoint)} every {duration(risk.interval(job.compute_seconds))}"
    rows = [
        ("training", f"{clean(job.asked, 60)}: {job.steps:,} steps, {show_count(job.samples)} samples"),
        ("without failures", duration(job.compute_seconds)),
        ("expected", f"{duration(job.expected_seconds)} ({likely}), goodput {100 * job.goodput:.1f} %"),
        ("interruptions", f"one every {duration(risk.mtbf)}; a checkpoint of {every}"),
        ("device-hours", "unknown" if math.isinf(job.device_hours) else f"{job.device_hours:,.0f}"),
    ]  # fmt: skip
    if job.usd is not None and job.usd_per_device_hour is not None:
        rows.append(("cost", f"{usd(job.usd)} at {usd(job.usd_per_device_hour)} per device-hour"))
    else:
        rows.append(("cost", "no catalog price; specify --usd-per-hour"))
    if job.energy_kwh is not None:
        pue = "" if job.pue is None else f", PUE {job.pue:g}"
        rows.append(("energy", f"{energy(job.energy_kwh)} at board power{pue}"))
    return rows


def energy(kwh: float) -> str:
    """`820 kWh`, `42.3 MWh`."""
    if not math.isfinite(kwh):
        return "unknown"
    if kwh >= 1e6:
        return f"{kwh / 1e6:,.3g} GWh"
    return f"{kwh / 1e3:,.3g} MWh" if kwh >= 1e3 else f"{kwh:.3g} kWh"


def usd(amount: float) -> str:
    """Cents below a hundred dollars, three digits below a dime."""
    if not math.isfinite(amount):
        return "unknown"
    if abs(amount) >= 100:
        return f"${amount:,.0f}"
    return f"${amount:,.2f}" if abs(amount) >= 0.1 else f"${amount:.3g}"
