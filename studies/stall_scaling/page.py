"""The document of the study of communication stalls: what was measured, the law, and the simulator's answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from foretrain.report import words
from foretrain.report.document import Axis, Chart, ChartPoint, Document, Section, Series, Table
from foretrain.units import show_bytes

LAW_WORDS = {
    "per_layer": "a layer",
    "per_tensor": "a gradient tensor",
    "per_bucket": "a bucket and additional device",
    "per_byte": "a MiB on the wire",
}
CAUSES = {
    "per_layer": "layers",
    "per_tensor": "gradient tensors",
    "per_bucket": "buckets",
    "per_byte": "bytes",
}
AXES: tuple[tuple[str, str], ...] = (
    ("bytes", "bytes of gradients"),
    ("tensors", "gradient tensors"),
    ("layers", "layers"),
)


def study_document(study: Mapping[str, Any]) -> Document:
    return Document(
        headline(study),
        lambda: study,
        partial(_sections, study),
        title="How communication stalls scale",
    )


def _sections(study: Mapping[str, Any]) -> Iterator[Section]:
    for key, title in AXES:
        if len({row[key] for row in study["rows"]}) > 1:
            yield _chart(study["rows"], key, title)
    yield _law(study)
    yield _rows(study["rows"])


def _chart(rows: Sequence[Mapping[str, Any]], key: str, title: str) -> Chart:
    """Stalls over one cause."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    series = [
        Series(kind, [p for row in rows if row["kind"] == kind for p in _points(row, key)])
        for kind in kinds
    ]
    return Chart(
        f"Stall vs. {title}",
        Axis(title, "bytes" if key == "bytes" else "count"),
        Axis("communication stall", "s"),
        series,
        hint="One point per network, both axes logarithmic. Filled points are measured, rings are simulated.",
    )


def _points(row: Mapping[str, Any], key: str) -> Iterator[ChartPoint]:
    for name, what in (("stall_seconds", "measured"), ("predicted_stall_seconds", "simulated")):
        if row[name] > 0 and row[key] > 0:
            tip = f"{row['net']}, {row['devices']} devices: {words.seconds(row[name])} {what}"
            yield ChartPoint(row[key], row[name], tip, is_filled=what == "measured")


def headline(study: Mapping[str, Any]) -> str:
    shares = study["law"]["shares"]
    main = max(shares, key=lambda name: shares[name])
    agreement = study["agreement"]
    order = agreement["rank_correlation"]
    return (
        f"{len(study['rows'])} networks measured: {words.percent(shares[main])} of their "
        f"communication stalls scales with {CAUSES[main]}; the simulator predicts "
        f"{agreement['median_ratio']:.2f} times the measured stall (median; "
        f"{agreement['median_ratio_waited']:.2f} times the wait of ranks after their own work), "
        f"rank correlation {'unknown' if order is None else f'{order:.2f}'}"
    )


def _law(study: Mapping[str, Any]) -> Table:
    rows = []
    for name, what in LAW_WORDS.items():
        scale = 2**20 if name == "per_byte" else 1
        cells = [what]
        for law in (study["law"], study["predicted_law"]):
            cells += [words.seconds(law[name] * scale), words.percent(law["shares"][name])]
        rows.append(tuple(cells))
    fit = ["fit (R², median error)"]
    for law in (study["law"], study["predicted_law"]):
        share = law["r_squared"]
        fit += ["–" if share is None else f"{share:.2f}", words.percent(law["median_error"])]
    head = ("per …", "measured", "share", "simulated", "share")
    return Table("What communication stalls scale with", head, (*rows, tuple(fit)))


def _rows(measured: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (
            row["net"],
            str(row["devices"]),
            str(row["tensors"]),
            show_bytes(row["bytes"]),
            str(row["buckets"]),
            words.seconds(row["alone_seconds"]),
            words.seconds(row["together_seconds"]),
            words.seconds(row["stall_seconds"]),
            words.seconds(row["waited_seconds"]),
            words.seconds(row["predicted_stall_seconds"]),
        )
        for row in measured
    )
    head = ("layers x width", "ranks", "tensors", "bytes", "buckets", "T0", "T1", "stall", "waited", "simulated")  # fmt: skip
    return Table("Networks", head, rows)
