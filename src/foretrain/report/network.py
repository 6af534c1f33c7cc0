"""The cluster drawn with the use of its links: one box per kind of node, the network below all of them.

Everything comes from the prediction: links are known by one example of each kind, so a box is an example
too and says how many nodes it stands for. Coordinates are those of an SVG of `WIDTH` units.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from foretrain.analysis.prediction import LinkUse, Prediction
from foretrain.report import links as link_words
from foretrain.report.words import clean, devices, percent

WIDTH = 320
SIZE = 24
"""Height of what stands for a device or a switch."""
MOST_BOXES = 12
MOST_DEVICES = 8
MOST_HUBS = 4
MOST_PORTS = 4

_DEVICES_Y, _HUBS_Y = 46, 128


@dataclass(frozen=True, slots=True)
class Box:
    """Nodes that look alike: an example's inner links, its links to the network, and what it stands for."""

    stages: tuple[int, ...]
    nodes: int  # 0 where not known
    inside: tuple[LinkUse, ...]
    outside: tuple[LinkUse, ...]


@dataclass(frozen=True, slots=True)
class Line:
    path: str
    cls: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Rect:
    x: float
    y: float
    width: float
    text: str
    cls: str


@dataclass(slots=True)
class Picture:
    """A box as it is drawn; `words` have a place and a text."""

    title: str = ""
    note: str = ""
    height: int = 0
    lines: list[Line] = field(default_factory=list)
    rects: list[Rect] = field(default_factory=list)
    words: list[tuple[float, float, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Chip:
    """A kind of link between switches."""

    text: str
    cls: str
    tip: str


@dataclass(frozen=True, slots=True)
class Drawing:
    boxes: list[Picture]
    left_out: int
    has_network: bool
    fabric: list[Chip]


def drawing(prediction: Prediction) -> Drawing:
    """What a page draws."""
    all_boxes = boxes(prediction)
    per_node = _per_node(prediction)
    return Drawing(
        [_picture(box, per_node) for box in all_boxes[:MOST_BOXES]],
        max(0, len(all_boxes) - MOST_BOXES),
        any(link.is_network for link in prediction.links),
        _fabric(prediction),
    )


def legend() -> Iterator[tuple[str, str]]:
    """Style and meaning of every color."""
    yield link_words.use_class(0.0), f"under {100 * link_words.STEPS[0]:g} %"
    for low, high in itertools.pairwise(link_words.STEPS):
        yield link_words.use_class(low), f"{100 * low:g}–{100 * high:g} %"
    yield link_words.use_class(link_words.STEPS[-1]), f"over {100 * link_words.STEPS[-1]:g} %"


# --- which boxes --------------------------------------------------------------------------------


def boxes(prediction: Prediction) -> list[Box]:
    """Kinds of nodes in the order of their stages; those that differ by rounding only are one."""
    ranks = _ranks(prediction)
    places: dict[str, list[LinkUse]] = {}
    for link in prediction.links:
        if not link.is_network:
            places.setdefault(link.name.partition(".")[0], []).append(link)
    places_of = [(_stages(inside), tuple(inside)) for inside in places.values()]
    named = {stage for stages, _ in places_of for stage in stages}
    places_of += [((stage,), ()) for stage in sorted(ranks) if stage not in named]
    places_of.sort(key=lambda row: row[0])
    per_node = _per_node(prediction)
    unmerged = []
    for stages, inside in places_of:
        alone = sum(bool(set(stages) & set(other)) for other, _ in places_of) == 1
        total = sum(ranks.get(stage, 0) for stage in stages)
        nodes = total // per_node if alone and per_node and total % per_node == 0 else 0
        unmerged.append(Box(stages, nodes, inside, _outside(prediction, stages)))
    return _merged(unmerged)


def _ranks(prediction: Prediction) -> dict[int, int]:
    """Ranks of each stage."""
    classes = {lane.rank_class: (lane.stage, lane.ranks) for lane in prediction.timeline.lanes}
    total: dict[int, int] = {}
    for stage, ranks in classes.values():
        total[stage] = total.get(stage, 0) + ranks
    return total


def _per_node(prediction: Prediction) -> int:
    nodes = prediction.question.get("nodes")
    count = devices(prediction)
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1 or count % nodes:
        return 0
    return count // nodes


def _stages(inside: list[LinkUse]) -> tuple[int, ...]:
    return tuple(sorted({s for link in inside for s in (*link.from_stages, *link.to_stages)}))


def _outside(prediction: Prediction, stages: tuple[int, ...]) -> tuple[LinkUse, ...]:
    """Links between a node of these stages and the network, busiest first."""
    mine = [
        link
        for link in prediction.links
        if link.is_network
        and any(link_words.is_port(end) for end in link_words.ends(link))
        and set(link_words.home_stages(link)[:1]) & set(stages)
    ]
    return tuple(sorted(mine, key=lambda link: -link.share))


def _merged(boxes: list[Box]) -> list[Box]:
    kept: list[Box] = []
    for box in boxes:
        for at, other in enumerate(kept):
            if _look_alike(box, other):
                nodes = box.nodes + other.nodes if box.nodes and other.nodes else 0
                stages = tuple(sorted({*other.stages, *box.stages}))
                kept[at] = Box(stages, nodes, other.inside, other.outside)
                break
        else:
            kept.append(box)
    return kept


def _look_alike(one: Box, other: Box) -> bool:
    for mine, theirs in ((one.inside, other.inside), (one.outside, other.outside)):
        if len(mine) != len(theirs):
            return False
        pairs = zip(sorted(mine, key=_look), sorted(theirs, key=_look), strict=True)
        for a, b in pairs:
            if _look(a)[0] != _look(b)[0] or not link_words.are_close(a.share, b.share):
                return False
    return True


def _look(link: LinkUse) -> tuple[str, float]:
    inner = link.kind if link.is_network else link.name.partition(".")[2]
    return inner, link.share


# --- one box ------------------------------------------------------------------------------------


def _picture(box: Box, per_node: int) -> Picture:
    ends = [link_words.ends(link) for link in box.inside]
    named = sorted({int(n) for pair in ends for e in pair for n in re.findall(r"^device(\d+)$", e)})
    count = max(per_node, named[-1] + 1 if named else 1)
    columns = _columns(count, named)
    hubs = list(dict.fromkeys(e for pair in ends for e in pair if not link_words.is_port(e)))[
        :MOST_HUBS
    ]
    picture = Picture(_title(box), _note(box, count))
    at = _places(columns, hubs)
    bottom = _inner_links(picture, box, at, columns, hubs)
    _devices(picture, columns, count)
    for hub in hubs:
        x, y = at[hub]
        picture.rects.append(_rect(x - _hub_width(hubs) / 2, y, _hub_width(hubs), hub, "hub"))
    picture.height = round(_ports(picture, box, bottom) if box.outside else bottom + 12)
    return picture


def _title(box: Box) -> str:
    nodes = f"{box.nodes:,} node{'' if box.nodes == 1 else 's'}" if box.nodes else ""
    return (
        " · ".join(part for part in (link_words.stages_text(box.stages), nodes) if part) or "node"
    )


def _note(box: Box, count: int) -> str:
    busiest = max((link.share for link in (*box.inside, *box.outside)), default=0.0)
    plural = "" if count == 1 else "s"
    return f"{count} device{plural} a node; busiest link {percent(busiest)}"


def _columns(count: int, named: list[int]) -> list[int]:
    """Numbers of the devices that are drawn: those that links are known of, then the first of the others."""
    chosen = named[:MOST_DEVICES]
    chosen += [n for n in range(count) if n not in chosen][: MOST_DEVICES - len(chosen)]
    return sorted(chosen)


def _places(columns: list[int], hubs: list[str]) -> dict[str, tuple[float, float]]:
    """Middle and top of everything drawn inside a node."""
    step = WIDTH / len(columns)
    at = {f"device{n}": (step * (i + 0.5), float(_DEVICES_Y)) for i, n in enumerate(columns)}
    width = WIDTH / max(1, len(hubs))
    return at | {hub: (width * (i + 0.5), float(_HUBS_Y)) for i, hub in enumerate(hubs)}


def _hub_width(hubs: list[str]) -> float:
    return WIDTH - 24 if len(hubs) == 1 else WIDTH / len(hubs) - 14


def _rect(x: float, y: float, width: float, text: str, cls: str) -> Rect:
    return Rect(round(x, 1), round(y, 1), round(width, 1), clean(text, 24), cls)


def _line(path: str, link: LinkUse, like: str = "") -> Line:
    tip = link_words.tip(link)
    return Line(path, link_words.use_class(link.share), f"{like}\n{tip}" if like else tip)


def _devices(picture: Picture, columns: list[int], count: int) -> None:
    step = WIDTH / len(columns)
    for i, number in enumerate(columns):
        picture.rects.append(
            _rect(step * (i + 0.5) - SIZE / 2, _DEVICES_Y, SIZE, str(number), "device")
        )
    if count > len(columns):
        picture.rects[-1] = replace(picture.rects[-1], text="…")


def _inner_links(
    picture: Picture,
    box: Box,
    at: dict[str, tuple[float, float]],
    columns: list[int],
    hubs: list[str],
) -> float:
    """Draws them, least busy first so that the busiest lies on top; gives where the drawing ends."""
    bottom = float(_DEVICES_Y + SIZE)
    _spokes(picture, box, at, columns, hubs)
    for link in sorted(box.inside, key=lambda link: link.share):
        tail, head = link_words.ends(link)
        if tail not in at or head not in at or (tail in hubs) != (head in hubs):
            continue
        (x1, y), (x2, _) = at[tail], at[head]
        depth = 14 + abs(x2 - x1) * (0.1 if tail in hubs else 0.28)
        y += SIZE
        path = f"M{x1:.1f} {y:.1f}Q{(x1 + x2) / 2:.1f} {y + 2 * depth:.1f} {x2:.1f} {y:.1f}"
        picture.lines.append(_line(path, link))
        bottom = max(bottom, y + depth + 4)
    return max(bottom, float(_HUBS_Y + SIZE)) if hubs else bottom


def _spokes(
    picture: Picture,
    box: Box,
    at: dict[str, tuple[float, float]],
    columns: list[int],
    hubs: list[str],
) -> None:
    """Devices to switches. A device without a link of its own kind is like the one before it."""
    known: dict[int, tuple[LinkUse, str]] = {}
    for link in sorted(box.inside, key=lambda link: link.share):
        for port, hub in (link_words.ends(link), link_words.ends(link)[::-1]):
            if hub in hubs and port in at and port not in hubs:
                known[int(port.removeprefix("device"))] = (link, hub)  # the busier way stays
    # where every known device is on the switch it would be on if they were dealt out evenly, all are
    dealt = {
        number: hubs[i * len(hubs) // len(columns)] for i, number in enumerate(columns) if hubs
    }
    is_even = all(dealt.get(number) == hub for number, (_, hub) in known.items())
    for number in columns if is_even and known else sorted(known):
        before = max((n for n in known if n <= number), default=min(known))
        link, hub = known[before]
        like = "" if before == number else f"device{number}: like"
        (x1, y1), (x2, y2) = at[f"device{number}"], at[dealt[number] if is_even else hub]
        x2 = x1 if len(hubs) == 1 else x2 + (x1 - x2) * 0.6
        path = f"M{x1:.1f} {y1 + SIZE:.1f}L{x2:.1f} {y2:.1f}"
        picture.lines.append(_line(path, link, like))


def _ports(picture: Picture, box: Box, top: float) -> float:
    """Network cards and their links, out and in, down to the lower edge."""
    shown = box.outside[:MOST_PORTS]
    y, bottom = top + 26, top + 26 + SIZE + 34
    middle, step = WIDTH / 2, 44
    ways = {_way(link) for link in shown}
    width = max(110, step * len(shown))
    picture.lines.append(Line(f"M{middle} {top}V{y}", "inner"))
    picture.rects.append(_rect(middle - width / 2, y, width, "network cards", "hub"))
    for i, link in enumerate(shown):
        x = middle + (i - (len(shown) - 1) / 2) * step
        picture.lines.append(_line(f"M{x:.1f} {y + SIZE:.1f}V{bottom:.1f}", link))
        if len(ways) > 1:
            picture.words.append((round(x + 14, 1), round(y + SIZE + 21, 1), _way(link)))
    return bottom


def _way(link: LinkUse) -> str:
    """`out` from a node or `in` to it; both are one kind of link where the loads are equal."""
    return "out" if link_words.is_port(link_words.ends(link)[0]) else "in"


# --- the network --------------------------------------------------------------------------------


def _fabric(prediction: Prediction) -> list[Chip]:
    """Links between switches of the network, by pattern."""
    inner = [
        link
        for link in prediction.links
        if link.is_network and not any(link_words.is_port(end) for end in link_words.ends(link))
    ]
    busiest: dict[str, LinkUse] = {}
    for link in sorted(inner, key=lambda link: -link.share):
        busiest.setdefault(link.kind or link.name, link)
    return [
        Chip(
            f"{clean(kind, 60).replace('->', ' → ')} {percent(link.share)}",
            link_words.use_class(link.share),
            link_words.tip(link),
        )
        for kind, link in busiest.items()
    ]
