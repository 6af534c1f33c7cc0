"""The document of a measured training run: its stalls under the names of a prediction, beside one where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from foretrain.analysis.prediction import STALLS
from foretrain.measurement.feeding import Feeding
from foretrain.report import words
from foretrain.report.document import Bar, Document, Figure, Figures, Lines, Section, Table, listed
from foretrain.report.prediction import stall_table
from foretrain.units import counted, show_bytes

RUN_MEANING = {
    "T0": "one device, one batch replayed",
    "T1": "one host, one batch replayed",
    "T5": "all hosts, one batch replayed",
    "T3": "real data, warm",
    "T2": "real data, cold",
    "P": "data loader only, warm",
    "F": "data loader only, cold",
    "P2": "data loader only, warm, twice the workers",
    "F2": "data loader only, cold, twice the workers",
}


def train_document(run: Mapping[str, Any]) -> Document:
    """Of the JSON of `measure train`."""
    command = words.clean(run.get("command", "Measured training"))
    return Document(headline(run), lambda: run, partial(_sections, run), title=command)


def _sections(run: Mapping[str, Any]) -> Iterator[Section]:
    predicted = run.get("prediction")
    yield Figures("Key figures", tuple(_tiles(run)))
    yield _stalls(run, predicted)
    if predicted:
        title = "Where the time goes: predicted"
        yield stall_table(title, predicted["stalls"], predicted["step_seconds"], detail=1)
    yield _runs(run["runs"])
    yield from whatif_sections(run.get("what_if"))
    yield listed("Warnings", run.get("warnings") or ())


def headline(run: Mapping[str, Any]) -> str:
    low, high = (words.seconds(value) for value in run["interval"])
    name = run["bottleneck"]
    share = run["stalls"][name] / run["step_seconds"]
    text = (
        f"{words.seconds(run['step_seconds'])} per step, measured ({low} – {high}); "
        f"bottleneck: {name}, {words.percent(share)} of it"
    )
    predicted = run.get("prediction")
    if predicted:
        error = predicted["step_seconds"] / run["step_seconds"] - 1
        text += f"; predicted {words.seconds(predicted['step_seconds'])} ({100 * error:+.1f} %)"
    return text


def _stalls(run: Mapping[str, Any], predicted: Mapping[str, Any] | None) -> Table:
    step, stalls = run["step_seconds"], run["stalls"]
    theirs = predicted["stalls"] if predicted else {}
    named = [n for n in STALLS if max(stalls[n], theirs.get(n, 0.0)) > step * 5e-5]
    named.sort(key=lambda name: -stalls[name])
    at, rows = 0.0, []
    for name in named:
        share = stalls[name] / step
        low, high = map(words.seconds, run["stall_intervals"][name])
        figures = (words.seconds(stalls[name]), words.percent(share), f"{low} – {high}")
        more = (words.seconds(theirs.get(name, 0.0)),) if predicted else ()
        rows.append((name, Bar(share, name, at), *figures, *more))
        at += share
    head = (
        "cause",
        "",
        "measured",
        "share",
        "95 % interval",
        *(("predicted",) if predicted else ()),
    )
    return Table("Where the time goes", head, rows, "nb" + "r" * (len(head) - 2))


def _runs(runs: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            name,
            RUN_MEANING.get(name, ""),
            words.seconds(run["step_seconds"]),
            " – ".join(words.seconds(value) for value in run["interval"]),
            words.percent(run["spread"]),
            f"{run['steps']:,} in {len(run['sittings'])}",
        )
        for name, run in runs.items()
    )
    head = ("run", "", "step", "95 % interval", "spread", "steps, rounds")
    return Table("Runs", head, rows, left=2)


def whatif_sections(what_if: Mapping[str, Any] | None) -> list[Section]:
    """What would change the speed, and what removes the data stall."""
    if not what_if:
        return []
    now = what_if["now"]["step_seconds"]
    rows = [("as measured (cold cache)", what_if["now"])]
    rows += [(f"{x['cached']:.0%} of the data cached", x) for x in what_if["cached_fraction"][1:]]
    rows += [(f"{counted(x['workers'], 'worker')}, cold cache", x) for x in what_if["workers"]]
    rows += [(f"{counted(x['workers'], 'worker')}, warm cache", x) for x in what_if["workers_warm"]]
    rows += [(f"{x['cores']:g} cores per rank, warm cache", x) for x in what_if["cores"][1:]]
    rows += [(f"disk {x['factor']:g} times as fast", x) for x in what_if["disk"]]
    if what_if["communication_seconds_alone"] > 0:
        rows += [(f"network {x['factor']:g} times as fast", x) for x in what_if["network"]]
    rows = [(name, x) for name, x in rows if x["step_seconds"] > 0]
    steps = words.seconds_alike(x["step_seconds"] for _, x in rows)
    table = tuple(
        (name, step, f"{now / x['step_seconds']:.2f}×", x["bottleneck"])
        for (name, x), step in zip(rows, steps, strict=True)
    )
    head = ("change", "step", "speed-up", "bottleneck")
    return [
        Table("What if", head, table),
        Lines("How to remove the data stall", _remedies(what_if)),
    ]


def _remedies(what_if: Mapping[str, Any]) -> Sequence[str]:
    share, size = what_if["smallest_cached_fraction"], what_if["smallest_cache_bytes"]
    if share is None:
        lines = [
            "Caching alone is not enough: preprocessing is too slow even with all data in memory."
        ]
    else:
        cache = f" ({show_bytes(size)})" if size is not None else ""
        lines = [f"A cache that holds {words.percent(share)} of the data{cache}."]
    for name, state in (("fewest_workers_cold", "cold"), ("fewest_workers_warm", "warm")):
        count = what_if[name]
        lines.append(
            f"With a {state} cache: {counted(count, 'worker')} per rank, given enough cores."
            if count is not None
            else (
                f"With a {state} cache: more workers do not help; something else is the bottleneck."
            )
        )
    if what_if["cores_per_rank"] is not None:
        lines.append(
            f"Training and preprocessing need {what_if['cores_per_rank']:.1f} cores per rank "
            "to keep up."
        )
    return lines


def changed_document(before: Feeding, after: Feeding, changes: Mapping[str, Any]) -> Document:
    """One change to a measured run: before and after."""
    first, second = before.point(), after.point()
    ratio = first.step_seconds / second.step_seconds
    changed = ", ".join(f"{name}={value}" for name, value in changes.items())
    line = (
        f"{words.seconds(second.step_seconds)} per step instead of {words.seconds(first.step_seconds)} "
        f"with {changed}: {ratio:.2f}×; bottleneck: {second.bottleneck}"
    )
    rows = tuple(
        (name, words.seconds(point.step_seconds), point.bottleneck)
        for name, point in (("as measured", first), ("changed", second))
    )
    data = {
        "changes": dict(changes),
        "before": {"step_seconds": first.step_seconds, "bottleneck": first.bottleneck},
        "after": {"step_seconds": second.step_seconds, "bottleneck": second.bottleneck},
        "speedup": ratio,
    }
    return Document(line, lambda: data, lambda: (Table("Step", ("", "step", "bottleneck"), rows),))


def _tiles(run: Mapping[str, Any]) -> Iterator[Figure]:
    low, high = map(words.seconds, run["interval"])
    yield Figure("Step time, measured", words.seconds(run["step_seconds"]), f"{low} – {high}")
    yield Figure("Bottleneck", run["bottleneck"])
    if predicted := run.get("prediction"):
        error = predicted["step_seconds"] / run["step_seconds"] - 1
        note = f"{100 * error:+.1f} % off the measured step time"
        yield Figure("Step time, predicted", words.seconds(predicted["step_seconds"]), note)
