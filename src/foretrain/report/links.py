"""Links in words: rows of tables, places and tooltips, worded once for every renderer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from foretrain.analysis.prediction import LinkUse, Prediction
from foretrain.report.document import Bar, Table
from foretrain.report.words import clean, percent
from foretrain.units import show_bandwidth, show_bytes

WORTH_A_TABLE = 0.05
"""Below this share of the step no link is worth a line in a terminal."""
ALIKE = 0.01
"""Links of one pattern whose shares differ by less than this are told apart by rounding only."""

STEPS = (0.01, 0.05, 0.2, 0.5, 0.8)
"""Where the color of a link changes, in shares of the step."""

SENDS = " (sends)"  # marks the lane of sends beside the collectives on a link


@dataclass(frozen=True, slots=True)
class LinkTableRow:
    """Kinds of links that differ by little, as one row: the busiest speaks for them."""

    link: LinkUse
    stages: tuple[int, ...]
    count: int  # links of all these kinds; 0 where not known
    is_both_ways: bool

    @property
    def name(self) -> str:
        arrow = " ↔ " if self.is_both_ways else " → "
        return clean(_kind(self.link), 80).replace("->", arrow)


def rows(prediction: Prediction, limit: int) -> list[LinkTableRow]:
    """The busiest links, busiest first; kinds of one pattern that are alike are one row."""
    groups: list[list[LinkUse]] = []
    for link in sorted(prediction.links, key=lambda link: -link.share):
        for group in groups:
            if _are_alike(group[0], link):
                group.append(link)
                break
        else:
            groups.append([link])
    return [_row(group) for group in groups[:limit]]


def use_class(share: float) -> str:
    """The style of a link that is busy for that share of the step."""
    return f"u{sum(share >= step for step in STEPS)}"


def table(prediction: Prediction, limit: int) -> Table:
    """The busiest links: when they are busy, what they carry and what for."""
    cells = tuple(
        (
            row.name,
            stage_runs(row.stages),
            percent(row.link.share),
            Bar(row.link.share, use_class(row.link.share), tip=tip(row.link, row.count)),
            show_bytes(row.link.bytes),
            show_bandwidth(row.link.bandwidth),
            purposes(row.link),
        )
        for row in rows(prediction, limit)
    )
    return Table("Links", ("link", "stages", "busy", "", "per step", "of", "for"), cells, "nlrBRRL")


def are_close(one: float, other: float) -> bool:
    return abs(one - other) <= ALIKE * max(abs(one), abs(other))


def _kind(link: LinkUse) -> str:
    return link.kind or link.name


def _pattern(link: LinkUse) -> tuple[object, ...]:
    """The same for both directions."""
    kind = _kind(link)
    inner = kind.removesuffix(SENDS)
    return sorted(inner.split("->")), inner == kind, link.is_network, link.bandwidth


def _are_alike(one: LinkUse, other: LinkUse) -> bool:
    return _pattern(one) == _pattern(other) and are_close(one.share, other.share)


def _row(group: list[LinkUse]) -> LinkTableRow:
    stages = sorted({stage for link in group for stage in home_stages(link)[:1]})
    known = all(link.count for link in group)
    count = sum(link.count for link in group) if known else 0
    return LinkTableRow(group[0], tuple(stages), count, len({_kind(link) for link in group}) > 1)


def ends(link: LinkUse) -> tuple[str, str]:
    """(tail, head) as the topology calls them, without the part of the cluster they are in."""
    inner = link.name.partition(".")[2] or link.name
    tail, _, head = inner.removesuffix(SENDS).partition("->")
    return tail, head


def is_port(end: str) -> bool:
    """Whether that end of a link belongs to a node rather than to a switch."""
    return re.fullmatch(r"(device|nic|node)\d+(\.\d+)*", end) is not None


def home_stages(link: LinkUse) -> tuple[int, ...]:
    """Stages of the ranks at the link's end: senders where it leaves a node, receivers where it enters one."""
    tail, head = ends(link)
    return link.to_stages if is_port(head) and not is_port(tail) else link.from_stages


def stage_runs(stages: Iterable[int]) -> str:
    """`3`, `0–2, 5`."""
    runs: list[list[int]] = []
    for stage in sorted(set(stages)):
        if runs and runs[-1][-1] == stage - 1:
            runs[-1].append(stage)
        else:
            runs.append([stage])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def stages_text(stages: Iterable[int]) -> str:
    """`stage 3`, `stages 0–2, 5`."""
    shown = stage_runs(stages)
    return f"stage{'' if shown.isdigit() else 's'} {shown}" if shown else ""


def worth_a_table(prediction: Prediction) -> bool:
    return any(link.share > WORTH_A_TABLE for link in prediction.links)


def traffic_text(link: LinkUse) -> str:
    """`tensor 97 %, pipeline 3 %`."""
    whole = sum(amount for _, amount in link.traffic) or 1.0
    return ", ".join(f"{clean(what, 40)} {percent(part / whole)}" for what, part in link.traffic)


def purposes(link: LinkUse) -> str:
    """`tensor, pipeline`: what accounts for more than a twentieth of the bytes."""
    whole = sum(amount for _, amount in link.traffic) or 1.0
    return ", ".join(clean(what, 40) for what, part in link.traffic if part > 0.05 * whole)


def detail(link: LinkUse) -> str:
    """`590.6 GiB per step over 240.0 GB/s`."""
    return f"{show_bytes(link.bytes)} per step over {show_bandwidth(link.bandwidth)}"


def tip(link: LinkUse, count: int = 0) -> str:
    """All there is to say about a link, on lines of its own."""
    sent, received = stages_text(link.from_stages), stages_text(link.to_stages)
    count = count or link.count
    lines = [
        clean(link.name, 120),
        f"busy {percent(link.share)} of the step",
        detail(link),
        traffic_text(link),
        sent if sent == received else f"from {sent} to {received}",
        f"one of {count:,} links like it" if count > 1 else "",
    ]
    return "\n".join(line for line in lines if line)
