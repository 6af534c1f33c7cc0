"""Pages about measurements: what a store holds, what was brought in or out, and what a calibration says."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from foretrain.measurement.calibration import Calibration
from foretrain.measurement.exchange import plain
from foretrain.measurement.machine import Machine
from foretrain.measurement.records import Measurement
from foretrain.report.page import Page, Section
from foretrain.units import counted, show_bandwidth, show_seconds


def measurements_section(rows: Sequence[Measurement]) -> Section:
    """One line for each machine and kind."""
    found: dict[tuple[str, str], list[Measurement]] = {}
    for row in rows:
        found.setdefault((row.machine.id, row.kind), []).append(row)
    lines = tuple(
        (
            machine,
            few[0].machine.title,
            kind,
            f"{len(few):,}",
            f"{100 * statistics.median(row.spread for row in few):.1f} %",
            max(row.at for row in few)[:19].replace("T", " "),
        )
        for (machine, kind), few in sorted(found.items())
    )
    head = ("machine", "title", "kind", "measurements", "spread", "last (UTC)")
    return Section("measurements", head, lines, left=3)


def measurement_rows(rows: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The document behind the section."""
    return [plain(row) for row in rows]


def moved_page(headline: str, rows: Sequence[Measurement], document: Mapping[str, Any]) -> Page:
    """After an import or an export."""
    return Page(headline, document, (measurements_section(rows),))


def calibration_page(calibration: Calibration) -> Page:
    """What was made of the measurements. `calibration` is the document too."""
    machine = Machine.from_dict(calibration.machine)
    known = calibration.provenance
    headline = (
        f"{machine.title}: {counted(len(calibration.ops), 'kernel')} and {counted(len(calibration.links), 'link curve')} "
        f"from {counted(known.measurements, 'measurement')}"
    )
    sections = tuple(
        section
        for section in (_kernels(calibration), _links(calibration), _rest(calibration))
        if section.rows or section.lines
    )
    return Page(headline, calibration.to_dict(), sections)


def _kernels(calibration: Calibration) -> Section:
    fitted = calibration.roofline
    if fitted is None:
        return Section("kernels", lines=("none timed: predictions use the built-in tables",))
    rows = tuple(
        (
            peak.kernel,
            peak.dtype,
            f"{sum((op.kernel, op.dtype) == (peak.kernel, peak.dtype) for op in calibration.ops):,}",
            f"{peak.flops / 1e9:,.1f} GFLOP/s",
        )
        for peak in fitted.peaks
    )
    threads = (
        ""
        if calibration.threads is None
        else f", {counted(calibration.threads, 'thread')} a process"
    )
    told = (
        f"memory {show_bandwidth(fitted.bandwidth)}, kernel start "
        f"{show_seconds(fitted.start_seconds)}{threads}; kernels are within "
        f"{100 * fitted.spread:.0f} % of this roofline"
    )
    return Section("kernels", ("kind", "dtype", "timed", "rate"), rows, lines=(told,), left=2)


def _links(calibration: Calibration) -> Section:
    rows = tuple(
        (
            link.collective,
            link.backend,
            f"{link.ranks}",
            f"{link.nodes}",
            f"{len(link.bytes)}",
            show_seconds(link.seconds[0]),
            show_bandwidth(link.bytes[-1] / link.seconds[-1]),
        )
        for link in calibration.links
    )
    head = ("collective", "library", "ranks", "nodes", "sizes", "smallest", "at the largest")
    return Section("links", head, rows, left=2)


def _rest(calibration: Calibration) -> Section:
    data, lines = calibration.data, []
    rates = {
        "fetch, cold cache": data.fetch_cold,
        "fetch, warm cache": data.fetch_warm,
        "host to device": data.host_to_device,
    }
    lines += [f"{name}: {show_bandwidth(rate)}" for name, rate in rates.items() if rate is not None]
    if data.prep_seconds_per_sample is not None:
        lines.append(
            f"preprocessing a sample: {show_seconds(data.prep_seconds_per_sample)} per worker"
        )
    if calibration.host_seconds_per_kernel is not None:
        lines.append(f"launching a kernel: {show_seconds(calibration.host_seconds_per_kernel)}")
    if calibration.drift:
        lines.append(f"drift between processes: {show_seconds(calibration.drift)} per second")
    return Section("data and host", lines=tuple(lines))
