"""One HTML file that holds everything: works offline, from a mail attachment, in light and dark."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from foretrain.analysis.prediction import STALLS, Prediction
from foretrain.arrays import Floats
from foretrain.compile.execution import KIND_NAMES, PHASE_NAMES
from foretrain.report import links, network, words
from foretrain.report.templates import template
from foretrain.report.timeline import bars
from foretrain.report.trace import process_name
from foretrain.units import counted, show_bytes

TICKS = 10_000_000
"""Times are whole ticks of the step in the page: short to write, finer than any pixel at any useful zoom."""

MOST_LINK_ROWS = 12


def render(prediction: Prediction) -> str:
    return template("page.html").render(
        title=words.clean(f"{prediction.question.get('model', 'Prediction')} · Foretrain", 120),
        asked=words.asked(prediction),
        headline=words.headline(prediction),
        fits=prediction.fits,
        tiles=_tiles(prediction),
        stalls=[
            (name, words.seconds(value), words.percent(share), words.STALL_MEANING[name])
            for name, value, share in words.stall_rows(prediction)
        ],
        job=words.job_rows(prediction),
        memory=_memory_table(prediction),
        network=network.drawing(prediction),
        link_rows=_link_rows(prediction),
        remedies=_remedies(prediction),
        operators=[(words.clean(n), words.seconds(s)) for n, s in prediction.operators[:20]],
        path=_path(prediction),
        path_note=words.path_note(prediction),
        question=words.question_rows(prediction),
        warnings=[words.clean(line, 2000) for line in prediction.warnings],
        assumptions=[words.clean(line, 2000) for line in prediction.assumptions],
        provenance=[(words.clean(k), words.clean(v)) for k, v in prediction.provenance.items()],
        data=script_json(_data(prediction)),
    )


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element: no `<`, `>` or `&` survives to end it early."""
    text = json.dumps(words.plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _tiles(prediction: Prediction) -> list[dict[str, str]]:
    count = words.devices(prediction)
    tiles = [
        {
            "name": "Step time",
            "value": words.seconds(prediction.step_seconds),
            "note": words.interval(prediction),
        },
        _throughput(prediction, count),
    ]
    if prediction.mfu is not None:
        note = f"HFU {words.percent(prediction.hfu)}" if prediction.hfu is not None else ""
        tiles.append({"name": "MFU", "value": words.percent(prediction.mfu), "note": note})
    tiles.append(
        {
            "name": "Memory" if prediction.fits else "Memory: does not fit",
            "value": show_bytes(prediction.memory.peak_bytes),
            "note": words.memory_note(prediction.memory),
            "tone": "" if prediction.fits else "bad",
        }
    )
    bottleneck = words.clean(prediction.bottleneck, 80)
    tone = "long" if len(bottleneck) > 14 else ""
    tiles.append({"name": "Bottleneck", "value": bottleneck, "note": "", "tone": tone})
    cost = prediction.cost
    if cost.usd_per_step is not None:
        hourly = f"{words.usd(cost.usd_per_hour)} per hour" if cost.usd_per_hour is not None else ""
        date = words.clean(cost.price_date or "", 20).replace("-", "\N{NON-BREAKING HYPHEN}")
        dated = f", prices as of {date}" if date else ""
        tiles.append(
            {"name": "Cost per step", "value": words.usd(cost.usd_per_step), "note": hourly + dated}
        )
    tiles += _job_tiles(prediction)
    share = words.percent(prediction.measured_share)
    tiles.append(
        {
            "name": "Measured share",
            "value": share,
            "note": "of the time is based on measured tables",
        }
    )
    return tiles


def _job_tiles(prediction: Prediction) -> list[dict[str, str]]:
    """How long the whole job takes and what it costs; the rest stands in its table."""
    job = prediction.job
    if job is None:
        return []
    alone = f"{words.duration(job.compute_seconds)} without failures"
    tiles = [{"name": "Job", "value": words.duration(job.expected_seconds), "note": alone}]
    if job.usd is not None:
        hours = f"{job.device_hours:,.0f} device-hours"
        tiles.append({"name": "Job cost", "value": words.usd(job.usd), "note": hours})
    return tiles


def _throughput(prediction: Prediction, count: int) -> dict[str, str]:
    if prediction.tokens_per_second is None:
        value, unit = prediction.samples_per_second, "Samples per second"
    else:
        value, unit = prediction.tokens_per_second, "Tokens per second"
    note = f"{value / count:,.0f} per device, {counted(count, 'device')}"
    return {"name": unit, "value": f"{value:,.0f}" if value >= 10 else f"{value:.3g}", "note": note}


def _memory_table(prediction: Prediction) -> dict[str, Any]:
    kinds = words.kinds(prediction)
    rows = [
        [
            str(stage.stage),
            show_bytes(stage.peak_bytes),
            *(show_bytes(stage.by_kind.get(kind, 0.0)) for kind in kinds),
            words.clean(stage.moment),
        ]
        for stage in prediction.memory.by_stage
    ]
    head = ["stage", "peak", *(words.clean(kind, 30) for kind in kinds), "when"]
    return {"head": head, "rows": rows}


def _remedies(prediction: Prediction) -> list[dict[str, Any]]:
    gains = [max(0.0, remedy.speedup - 1.0) for remedy in prediction.what_would_help]
    most = max(gains, default=0.0) or 1.0
    return [
        {
            "change": words.clean(remedy.change),
            "step": step,
            "speedup": f"{remedy.speedup:.2f}×",
            "width": f"{100 * gain / most:.1f}",
        }
        for (remedy, step), gain in zip(words.remedy_rows(prediction), gains, strict=True)
    ]


def _link_rows(prediction: Prediction) -> list[dict[str, str]]:
    return [
        {
            "name": row.name,
            "where": row.where + (f" · {counted(row.count, 'link')}" if row.count else ""),
            "share": words.percent(row.link.share),
            "width": f"{100 * max(0.0, min(1.0, row.link.share)):.2f}",
            "cls": network.use_class(row.link.share),
            "detail": _unbroken(
                " · ".join(
                    part for part in (links.detail(row.link), links.traffic_text(row.link)) if part
                )
            ),
            "tip": links.tip(row.link, row.count),
        }
        for row in links.rows(prediction, MOST_LINK_ROWS)
    ]


def _unbroken(text: str) -> str:
    """Numbers stay with their percent signs."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _path(prediction: Prediction) -> list[tuple[str, str, str, str]]:
    return [
        (what, str(stage), f"{count:,}×", words.seconds(total))
        for what, stage, count, total in words.path_rows(prediction)
    ]


def _data(prediction: Prediction) -> dict[str, Any]:
    """What the charts draw."""
    kinds = words.kinds(prediction)
    memory = prediction.memory
    used = [
        n
        for n in STALLS
        if any(s.get(n, 0.0) > 0 for s in (prediction.stalls, *prediction.stalls_by_stage))
    ]
    return {
        "step": prediction.step_seconds,
        "stalls": [[name, prediction.stalls.get(name, 0.0)] for name in used],
        "stallsByStage": [
            [stage.get(name, 0.0) for name in used] for stage in prediction.stalls_by_stage
        ],
        "memory": {
            "usable": memory.usable_bytes,
            "kinds": [words.clean(kind, 30) for kind in kinds],
            "stages": [stage.stage for stage in memory.by_stage],
            "rows": [[stage.by_kind.get(kind, 0.0) for kind in kinds] for stage in memory.by_stage],
        },
        "timeline": _timeline(prediction),
    }


def _timeline(prediction: Prediction) -> dict[str, Any]:
    timeline = prediction.timeline
    drawn = bars(timeline)
    whole = max(float(timeline.end.max(initial=0.0)), prediction.step_seconds, 1e-12)
    task = drawn.task

    def ticks(seconds: Floats) -> list[int]:
        return [int(t) for t in np.round(seconds * (TICKS / whole)).astype(np.int64)]

    return {
        "whole": whole,
        "ticks": TICKS,
        "tasks": int(np.count_nonzero(timeline.lane >= 0)),
        "merged": drawn.shortest_drawn_alone,
        "lanes": [
            [process_name(lane), words.clean(lane.stream, 40), lane.rank_class]
            for lane in timeline.lanes
        ],
        "labels": [words.clean(label, 200) for label in timeline.labels],
        "phases": PHASE_NAMES,
        "kinds": KIND_NAMES,
        "start": ticks(drawn.start),
        "end": ticks(drawn.end),
        "busy": ticks(drawn.busy) if drawn.shortest_drawn_alone else [],
        "count": drawn.count.tolist() if drawn.shortest_drawn_alone else [],
        "lane": timeline.lane[task].tolist(),
        "label": timeline.label[task].tolist(),
        "phase": timeline.phase[task].tolist(),
        "kind": timeline.kind[task].tolist(),
        "micro": timeline.micro[task].tolist(),
        "chunk": timeline.chunk[task].tolist(),
    }
