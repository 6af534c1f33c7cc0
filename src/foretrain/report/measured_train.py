"""A measured training run: its stalls under the names of a prediction, beside one where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from foretrain.analysis.prediction import STALLS
from foretrain.measurement.feeding import Feeding
from foretrain.report import words
from foretrain.report.outline import bar
from foretrain.report.page import Page, Section
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
BAR = 20


def train_page(document: Mapping[str, Any]) -> Page:
    """The page of a `measure train` document."""
    predicted = document.get("prediction")
    sections = [
        _stalls(document, predicted),
        _runs(document["runs"]),
        *whatif_sections(document.get("what_if")),
        Section("Warnings", lines=tuple(document.get("warnings") or ())),
    ]
    page = Page(headline(document), document, tuple(sections))
    return Page(page.headline, document, page.sections, more={"html": partial(_html, page)})


def headline(document: Mapping[str, Any]) -> str:
    low, high = (words.seconds(value) for value in document["interval"])
    name = document["bottleneck"]
    share = document["stalls"][name] / document["step_seconds"]
    text = (
        f"{words.seconds(document['step_seconds'])} per step, measured ({low} – {high}); "
        f"bottleneck: {name}, {words.percent(share)} of it"
    )
    predicted = document.get("prediction")
    if predicted:
        error = predicted["step_seconds"] / document["step_seconds"] - 1
        text += f"; predicted {words.seconds(predicted['step_seconds'])} ({100 * error:+.1f} %)"
    return text


def _stalls(document: Mapping[str, Any], predicted: Mapping[str, Any] | None) -> Section:
    step, found = document["step_seconds"], document["stalls"]
    theirs = predicted["stalls"] if predicted else {}
    named = [n for n in STALLS if max(found[n], theirs.get(n, 0.0)) > step * 5e-5]
    named.sort(key=lambda name: -found[name])
    longest = max((found[name] for name in named), default=1.0) or 1.0
    rows = []
    for name in named:
        low, high = document["stall_intervals"][name]
        row = [name, bar(found[name] / longest, BAR)]
        row += [words.seconds(found[name]), words.percent(found[name] / step)]
        row.append(f"{words.seconds(low)} – {words.seconds(high)}")
        rows.append((*row, *([words.seconds(theirs.get(name, 0.0))] if predicted else [])))
    head = ("cause", "", "measured", "share", "95 % interval")
    return Section(
        "Where the time goes", (*head, *(["predicted"] if predicted else [])), tuple(rows), left=2
    )


def _runs(runs: Mapping[str, Any]) -> Section:
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
    return Section("Runs", head, rows, left=2)


def whatif_sections(found: Mapping[str, Any] | None) -> list[Section]:
    """What would change the speed, and what removes the data stall."""
    if not found:
        return []
    now = found["now"]["step_seconds"]
    rows = [("as measured (cold cache)", found["now"])]
    rows += [(f"{x['cached']:.0%} of the data cached", x) for x in found["cached_fraction"][1:]]
    rows += [(f"{counted(x['workers'], 'worker')}, cold cache", x) for x in found["workers"]]
    rows += [(f"{counted(x['workers'], 'worker')}, warm cache", x) for x in found["workers_warm"]]
    rows += [(f"{x['cores']:g} cores per rank, warm cache", x) for x in found["cores"][1:]]
    rows += [(f"disk {x['factor']:g} times as fast", x) for x in found["disk"]]
    if found["communication_seconds_alone"] > 0:
        rows += [(f"network {x['factor']:g} times as fast", x) for x in found["network"]]
    rows = [(name, x) for name, x in rows if x["step_seconds"] > 0]
    steps = words.seconds_alike(x["step_seconds"] for _, x in rows)
    table = tuple(
        (name, step, f"{now / x['step_seconds']:.2f}×", x["bottleneck"])
        for (name, x), step in zip(rows, steps, strict=True)
    )
    head = ("change", "step", "speed-up", "bottleneck")
    return [
        Section("What if", head, table),
        Section("How to remove the data stall", lines=tuple(_remedies(found))),
    ]


def _remedies(found: Mapping[str, Any]) -> Sequence[str]:
    share, size = found["smallest_cached_fraction"], found["smallest_cache_bytes"]
    if share is None:
        told = [
            "Caching alone is not enough: preprocessing is too slow even with all data in memory."
        ]
    else:
        of = f" ({show_bytes(size)})" if size is not None else ""
        told = [f"A cache that holds {words.percent(share)} of the data{of}."]
    for name, state in (("fewest_workers_cold", "cold"), ("fewest_workers_warm", "warm")):
        count = found[name]
        told.append(
            f"With a {state} cache: {counted(count, 'worker')} per rank, given enough cores."
            if count is not None
            else (
                f"With a {state} cache: more workers do not help; something else is the bottleneck."
            )
        )
    if found["cores_per_rank"] is not None:
        told.append(
            f"Training and preprocessing need {found['cores_per_rank']:.1f} cores per rank "
            "to keep up."
        )
    return told


def changed_page(before: Feeding, after: Feeding, changes: Mapping[str, Any]) -> Page:
    """One change to a measured run: before and after."""
    first, second = before.point(), after.point()
    ratio = first.step_seconds / second.step_seconds
    told = ", ".join(f"{name}={value}" for name, value in changes.items())
    line = (
        f"{words.seconds(second.step_seconds)} per step instead of {words.seconds(first.step_seconds)} "
        f"with {told}: {ratio:.2f}×; bottleneck: {second.bottleneck}"
    )
    rows = tuple(
        (name, words.seconds(point.step_seconds), point.bottleneck)
        for name, point in (("as measured", first), ("changed", second))
    )
    document = {
        "changes": dict(changes),
        "before": {"step_seconds": first.step_seconds, "bottleneck": first.bottleneck},
        "after": {"step_seconds": second.step_seconds, "bottleneck": second.bottleneck},
        "speedup": ratio,
    }
    return Page(line, document, (Section("Step", ("", "step", "bottleneck"), rows),))


def _html(page: Page) -> str:
    from foretrain.report.html import script_json
    from foretrain.report.templates import template

    document = page.document
    predicted = document.get("prediction")
    return template("measured.html").render(
        title="Measured training · Foretrain",
        asked=words.clean(document.get("command", "Measured training")),
        headline=page.headline,
        tiles=_tiles(document),
        charts=True,
        has_prediction=bool(predicted),
        drawings=[],
        sections=[s for s in page.sections if s.rows or s.lines],
        data=script_json(_data(document, predicted)),
    )


def _data(document: Mapping[str, Any], predicted: Mapping[str, Any] | None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "step": document["step_seconds"],
        "stalls": [[name, document["stalls"][name]] for name in STALLS],
        "stallsByStage": [],
    }
    if predicted:
        told = [[name, predicted["stalls"].get(name, 0.0)] for name in STALLS]
        data["predicted"] = {"step": predicted["step_seconds"], "stalls": told}
    return data


def _tiles(document: Mapping[str, Any]) -> list[dict[str, str]]:
    low, high = (words.seconds(value) for value in document["interval"])
    tiles = [
        {
            "name": "Step time, measured",
            "value": words.seconds(document["step_seconds"]),
            "note": f"{low} – {high}",
        },
        {"name": "Bottleneck", "value": document["bottleneck"], "note": ""},
    ]
    predicted = document.get("prediction")
    if predicted:
        error = predicted["step_seconds"] / document["step_seconds"] - 1
        tiles.append(
            {
                "name": "Step time, predicted",
                "value": words.seconds(predicted["step_seconds"]),
                "note": f"{100 * error:+.1f} % off the measured step time",
            }
        )
    return tiles
