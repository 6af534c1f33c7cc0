"""docs/measured-stalls.md: what tools/measured_stalls.py found, and how."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretrain.measurement.train_runs import TrainRun, train_run
from foretrain.measurement.whatif import changed, feeding_of
from foretrain.report.md import table

WITHIN = 0.10  # of a real run, for a predicted effect
SUM_WITHIN = 0.02  # of the step, for the sum of its stalls

HEAD = """# Stalls measured on real runs

Written by `tools/measured_stalls.py`; do not edit. Raw results, including every step, are in
[measured-stalls.json](measured-stalls.json).

    python tools/measured_stalls.py --json docs/measured-stalls.json --page docs/measured-stalls.md
    python tools/measured_stalls.py --from docs/measured-stalls.json --page docs/measured-stalls.md

"""

HOW = """
## Experiment

One script, [tools/measured/train.py](../tools/measured/train.py), is run with four known bottlenecks: random reads of
4 KiB from a cold file, hashing in the data loader worker, compute, and gradients over a cable of 100 Mb/s between two network
namespaces (`ip`, `tc`; needs root). There is one loader worker and one PyTorch thread. With a cold cache, an epoch reads no record
twice, and the file is evicted from the page cache before each run.

In each turn, one launch of `measure train` is followed by the unmodified script, timed by its own clock without Foretrain, and by a
real run of every change in the second table. Temporary slowdowns of the machine affect all of them; medians over turns are compared.
The effect of a change is the speedup of the script: its prediction comes from the measurements of the unmodified script (and of its
loader with twice the workers), and is compared with the median over turns of the real speedup.

The disk of the `fetch` run is limited to a fixed number of reads per second by a cgroup (blk-throttle, as in clouds; cgroup version 1
has been tested, version 2 has the same setting under another name). The unthrottled disk of a shared machine varies by a factor of
two from one minute to the next. If no cgroup can be set, the disk is not throttled, and the table says so. On a throttled disk two
workers are no faster than one: this tests that `measure train` detects it.
"""


@dataclass(frozen=True)
class Effect:
    """One change: predicted from measurements, and run."""

    case: str
    change: str
    predicted: float  # times as fast
    measured: float
    spread: tuple[float, float]  # least and most of the turns
    predicted_step: float
    measured_step: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def by_itself(name: str, turns: Sequence[Sequence[float]], workers: int = 1) -> TrainRun:
    """Steps of the script's own clock, made one figure of as those of `measure train` are."""
    launches = [
        {
            "run": name,
            "workers": workers,
            "ranks": [
                {"passes": [[s, 0.0, 0.0, 0.0, 0.0] for s in turn], "updates": [True] * len(turn)}
            ],
        }
        for turn in turns
    ]
    return train_run(name, launches)


def effects(name: str, case: Mapping[str, Any]) -> list[Effect]:
    told = case["by_itself"]
    base = by_itself("base", told["by itself"]).sittings
    found = []
    for change, turns in told.items():
        key, _, value = change.partition("=")
        if not value:
            continue
        before = feeding_of(case["document"], name)
        after = changed(before, {key: float(value)})
        workers = int(value) if key == "workers" else 1
        steps = by_itself(change, turns, workers).sittings
        ratios = [one / other for one, other in zip(base, steps, strict=True)]
        found.append(
            Effect(
                name,
                change,
                before.step_seconds / after.step_seconds,
                statistics.median(ratios),
                (min(ratios), max(ratios)),
                after.step_seconds,
                statistics.median(steps),
            )
        )
    return found


def case_lines(name: str, case: Mapping[str, Any]) -> list[str]:
    """For the terminal."""
    row = _case_row(name, case)
    lines = [", ".join(f"{title} {cell}" for title, cell in zip(CASE_HEAD, row, strict=True))]
    lines += [" | ".join(_effect_row(one)) for one in effects(name, case)]
    return [f"{name}: {line}" for line in lines] + [
        f"{name}: warning: {line}" for line in case["document"]["warnings"]
    ]


def whatif_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        _effect_row(one) for name, case in found["cases"].items() for one in effects(name, case)
    ]


def page(found: Mapping[str, Any]) -> str:
    cases = found["cases"]
    text = HEAD + f"{found['began']}, on {found['machine']}; {found['turns']} turns of "
    text += f"{found['steps']} steps.\n\n" + "\n".join(_verdicts(found)) + "\n\n## Stalls\n\n"
    text += table(CASE_HEAD, [_case_row(name, case) for name, case in cases.items()])
    text += "\n\nThe difference is between a launch and the unmodified script in the same turn: the median over turns, and the range.\n"
    text += "Other load is the fraction of all cores used by other processes meanwhile.\n\n"
    text += "\n".join(
        f"- `{name}`: the disk is {case['disk']}."
        for name, case in cases.items()
        if name == "fetch"
    )
    left = [f"- `{name}` left out: {reason}." for name, reason in found["left_out"].items()]
    text += "\n".join(["", *left]) + "\n\n## What if\n\n"
    text += table(EFFECT_HEAD, whatif_rows(found)) + "\n\n## Runs\n\n"
    text += "T0 to F2 are [runs of `measure train`](stalls.md#runs); the others are the unmodified script.\n\n"
    text += table(RUN_HEAD, [row for name, case in cases.items() for row in _run_rows(name, case)])
    return text + "\n" + HOW


def has_failed(found: Mapping[str, Any]) -> bool:
    return any(not _names_its_cause(name, case) for name, case in found["cases"].items())


CASE_HEAD = (
    "bound by", "largest stall", "of the step", "step", "sum of stalls", "script by itself", "difference", "turns", "other load",
)  # fmt: skip
EFFECT_HEAD = (
    "run", "change", "predicted", "measured", "turns", "error", "step predicted", "step measured",
)  # fmt: skip
RUN_HEAD = ("case", "run", "step", "95 % interval", "spread", "steps")


def _case_row(name: str, case: Mapping[str, Any]) -> tuple[str, ...]:
    document = case["document"]
    step, largest = document["step_seconds"], document["bottleneck"]
    plain = by_itself(name, case["by_itself"]["by itself"])
    turns = document["runs"][document["explained_run"]]["sittings"]
    differences = [one / other - 1 for one, other in zip(turns, plain.sittings, strict=True)]
    return (
        name,
        largest,
        f"{100 * document['stalls'][largest] / step:.0f} %",
        _ms(step),
        _ms(sum(document["stalls"].values())),
        _ms(plain.step_seconds),
        f"{100 * statistics.median(differences):+.1f} %",
        f"{100 * min(differences):+.1f} – {100 * max(differences):+.1f} %",
        f"{100 * case['others']:.0f} %",
    )


def _effect_row(one: Effect) -> tuple[str, ...]:
    return (
        one.case,
        one.change,
        f"{one.predicted:.2f}×",
        f"{one.measured:.2f}×",
        f"{one.spread[0]:.2f} – {one.spread[1]:.2f}×",
        f"{100 * one.error:+.1f} %",
        _ms(one.predicted_step),
        _ms(one.measured_step),
    )


def _run_rows(name: str, case: Mapping[str, Any]) -> list[tuple[str, ...]]:
    runs = dict(case["document"]["runs"])
    for title, turns in case["by_itself"].items():
        workers = int(title.removeprefix("workers=")) if title.startswith("workers=") else 1
        runs[title] = by_itself(title, turns, workers).to_dict()
    return [
        (
            name,
            title,
            _ms(run["step_seconds"]),
            " – ".join(_ms(value) for value in run["interval"]),
            f"{100 * run['spread']:.1f} %",
            f"{run['steps']}",
        )
        for title, run in runs.items()
    ]


def _verdicts(found: Mapping[str, Any]) -> list[str]:
    cases = found["cases"]
    right = sum(_names_its_cause(name, case) for name, case in cases.items())
    every = [one for name, case in cases.items() for one in effects(name, case)]
    near = sum(abs(one.error) <= WITHIN for one in every)
    return [
        f"- The largest stall is the known cause, and stalls sum to the step, in {right} of {len(cases)} runs.",
        f"- {near} of {len(every)} predicted effects are within {WITHIN:.0%} of a real run.",
    ]


def _names_its_cause(name: str, case: Mapping[str, Any]) -> bool:
    document = case["document"]
    total, step = sum(document["stalls"].values()), document["step_seconds"]
    return bool(document["bottleneck"] == name and abs(total / step - 1) <= SUM_WITHIN)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"
