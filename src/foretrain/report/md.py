"""The answer as Markdown (GitHub flavour), for pull requests and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from foretrain.analysis.prediction import Prediction
from foretrain.report import links, words
from foretrain.units import show_bandwidth, show_bytes

_SPECIAL = re.compile(r"[\\`*_{}\[\]!|~$]|^[-+#]|@|:(?=//)")


def render(prediction: Prediction) -> str:
    parts = [
        f"# {text(words.asked(prediction))}",
        f"**{text(words.headline(prediction))}**",
        _facts(prediction),
        *_job(prediction),
        "## Where the time goes",
        table(
            ("", "per step", "share", "what it is"),
            [
                (name, words.seconds(value), words.percent(share), words.STALL_MEANING[name])
                for name, value, share in words.stall_rows(prediction)
            ],
        ),
        "## Memory",
        _memory(prediction),
    ]
    if links.worth_a_table(prediction):
        parts += ["## Links", _links(prediction)]
    if prediction.what_would_help:
        parts += ["## What would help", _remedies(prediction)]
    if prediction.operators:
        rows = [(name, words.seconds(value)) for name, value in prediction.operators]
        parts += ["## Top operators by time", table(("operator", "per step"), rows)]
    for title, lines in (
        ("Warnings", prediction.warnings),
        ("Assumptions", prediction.assumptions),
    ):
        if lines:
            parts += [f"## {title}", "\n".join(f"- {text(line)}" for line in lines)]
    parts += ["## Configuration", table(("", ""), words.question_rows(prediction))]
    parts += ["## Provenance", table(("", ""), prediction.provenance.items())]
    return "\n\n".join(parts) + "\n"


def text(value: object) -> str:
    """`value` as literal text: nothing in it is markup, a link, a mention or HTML."""
    shown = words.clean(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(_escape, shown)


def _escape(found: re.Match[str]) -> str:
    # a backslash does not stop GitHub from linking addresses and mentions, an entity does
    character = found[0]
    return f"&#{ord(character)};" if character in "@:" else f"\\{character}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    drawn = ["| " + " | ".join(text(cell) for cell in row) + " |" for row in (head, *rows)]
    drawn.insert(1, "|" + "---|" * len(head))
    return "\n".join(drawn)


def _facts(prediction: Prediction) -> str:
    facts = [f"Bottleneck: {text(prediction.bottleneck)}."]
    if (money := words.money(prediction)) is not None:
        facts.append(f"Cost: {text(money)}.")
    facts.append(
        f"{words.percent(prediction.measured_share)} of the time is based on measured tables."
    )
    return " ".join(facts)


def _job(prediction: Prediction) -> tuple[str, ...]:
    rows = words.job_rows(prediction)
    return ("## Job totals", table(("", ""), rows)) if rows else ()


def _memory(prediction: Prediction) -> str:
    kinds = words.kinds(prediction)
    rows = [
        (
            stage.stage,
            show_bytes(stage.peak_bytes),
            *(show_bytes(stage.by_kind.get(k, 0.0)) for k in kinds),
            stage.moment,
        )
        for stage in prediction.memory.by_stage
    ]
    said = words.verdict(prediction)
    peak = (
        f"{text(said[0].upper() + said[1:])}; peak on stage {prediction.memory.peak_stage}, "
        f"{text(prediction.memory.moment)}."
    )
    return peak + "\n\n" + table(("stage", "peak", *kinds, "when"), rows)


def _links(prediction: Prediction) -> str:
    rows = [
        (
            row.name,
            row.where,
            words.percent(row.link.share),
            show_bytes(row.link.bytes),
            show_bandwidth(row.link.bandwidth),
            links.traffic_text(row.link),
        )
        for row in links.rows(prediction, 5)
    ]
    return table(("link", "where", "busy", "per step", "bandwidth", "traffic"), rows)


def _remedies(prediction: Prediction) -> str:
    rows = [
        (remedy.change, step, f"{remedy.speedup:.2f}×")
        for remedy, step in words.remedy_rows(prediction)
    ]
    return table(("change", "step", "speed-up"), rows)
