"""The best plans: a table of them, the front of time against memory, what was left out and why others lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from foretrain.named import named
from foretrain.planning.document import pruned, question
from foretrain.planning.explain import Explanation
from foretrain.planning.per_layer import described
from foretrain.planning.planner import Ranked
from foretrain.planning.survey import Seen
from foretrain.report import words
from foretrain.report.page import Late, Page, Section, listed
from foretrain.searching import Found, spread
from foretrain.units import counted, show_bytes

FRONT_ROWS = 8
BAR = 24


Launch: TypeAlias = Mapping[str, Any]
"""Launch files that were written: target, folder, files, cannot."""


def search_page(
    found: Found, asked: Explanation | None = None, launch: Launch | None = None
) -> Page:
    """`asked`: the answer to a why, put first."""
    told = found.explanations
    nearest = tuple(dict.fromkeys(one.choice for one in told))
    first = [next(one for one in told if one.choice == choice) for choice in nearest]
    front = spread(found.pareto, FRONT_ROWS)
    why = "Why other choices are slower" if found.best else "How far each choice is from fitting"
    sections = (
        Section("Why not " + _asked(asked), lines=(asked.sentence,) if asked else ()),
        best_section(found),
        command_section(found),
        Section("What would fit", lines=tuple(remedies(found))),
        front_section(found, front, "Step time vs. memory (estimated)"),
        pruned_section(found),
        Section(why, lines=tuple(o.sentence for o in first), detail=0 if found.best else 1),
        Section("… and other values", lines=_rest(told, first), detail=1),
        *(_launch_sections(launch) if launch else ()),
        *closing(found),
    )
    more: dict[str, Callable[[], str]] = {
        "html": partial(_html, found, launch),
    }
    return Page(
        headline(found),
        Late(partial(_document, found, asked, launch)),
        sections,
        not found.best,
        more,
        rows=found.rows(),
        asked=asked_line(found),
        whole=_names(found, asked, launch),
    )


def closing(found: Found) -> tuple[Section, ...]:
    """What a reader should know besides."""
    task = found.task
    return (
        listed("Warnings", task.warnings),
        listed("Assumptions", task.assumptions),
        Section("Notes", lines=found.notes),
    )


def _names(found: Found, asked: Explanation | None, launch: Launch | None) -> tuple[str, ...]:
    """Plans and files that sentences speak of."""
    q, larger = question(found), found.with_more_nodes
    spoken_of = [
        *(described(row.plan) for row in found.best),
        *(row.plan for row in (*found.pareto, found.nearest) if row is not None),
        *(one.plan for one in (*found.explanations, asked) if one is not None),
        None if larger is None else larger.best.plan,
        found.command,
        *((f"{launch['folder']}/{name}" for name in launch["files"]) if launch else ()),
    ]
    return tuple(dict.fromkeys(name for name in (*spoken_of, q["model"], q["cluster"]) if name))


def _document(found: Found, asked: Explanation | None, launch: Launch | None) -> Mapping[str, Any]:
    made = dict(found.to_dict())
    if asked is not None:
        made["why"] = asked.to_dict()
    if launch is not None:
        made["exported"] = dict(launch)
    return made


def _launch_sections(launch: Launch) -> tuple[Section, ...]:
    files = [f"{launch['folder']}/{name}" for name in launch["files"]]
    return (
        Section(f"Launch files for the best plan: {launch['target']}", lines=tuple(files)),
        Section("Warnings about these files", lines=tuple(launch["warnings"])),
        Section("Not expressible in these files", lines=tuple(launch["cannot"])),
    )


def _asked(asked: Explanation | None) -> str:
    return "" if asked is None else f"{asked.choice}={asked.value}" if asked.value else asked.choice


def _rest(told: tuple[Explanation, ...], first: list[Explanation]) -> tuple[str, ...]:
    return tuple(one.sentence for one in told if one not in first)


def headline(found: Found) -> str:
    """The decision in one sentence."""
    count = counted(found.plans_valid, "plan")
    if found.best:
        best = found.best[0]
        return f"Best of {count}: {described(best.plan)}, {words.headline(best.prediction)}"
    if not found.plans_valid:
        return "No valid plan"
    if found.plans_fitting:
        return (
            f"None of {count} fits: {found.plans_fitting:,} were estimated to fit, but too "
            "narrowly: the simulation of the best shows that it does not"
        )
    text = f"None of {count} fits"
    if found.nearest is None:
        return text
    lacks = show_bytes(found.nearest.lacks)
    text += f": the closest, {found.nearest.plan}, exceeds device memory by {lacks}"
    larger = found.with_more_nodes
    if larger is not None:
        text += f"; with {larger.factor}x the nodes {larger.best.plan} fits"
    return text


def asked_line(found: Found) -> str:
    """`llama3-8b on 2 x dgx-h100 · batch 256 · seq 8,192 · bf16 · megatron`."""
    q = question(found)
    parts = [
        f"{words.clean(q['model'])} on {words.clean(q['cluster'])}",
        f"batch {q['global_batch']:,}",
    ]
    if q["seq_len"]:
        parts.append(f"seq {q['seq_len']:,}")
    parts += [words.clean(q["precision"]), words.clean(q["runtime"])]
    if found.where:
        parts.append(words.clean(", ".join(found.where)))
    return " · ".join(parts)


def best_section(found: Found) -> Section:
    unit = next((words.rate(row.prediction).rpartition(" ")[2] for row in found.best), "")
    each = unit.partition("/device")[0]
    head = ("#", "plan", "step", each, "MFU", "peak")
    has_price = any(row.prediction.cost.usd_per_step is not None for row in found.best)
    rows = tuple(
        (str(number), described(row.plan), step, *_cells(row, has_price))
        for number, (row, step) in enumerate(zip(found.best, best_steps(found), strict=True), 1)
    )
    front = "Pareto-optimal plans (step time and memory)"
    title = f"{front if found.objective == 'pareto' else 'Best plans'}, simulated"
    if found.best:
        title += f"; {words.usable(found.best[0].prediction.memory)}"
    letters = "rn" + "r" * (4 + has_price)
    return Section(title, (*head, *(("per step",) if has_price else ())), rows, columns=letters)


def best_steps(found: Found) -> tuple[str, ...]:
    """Step times of the best plans."""
    return words.seconds_alike(row.prediction.step_seconds for row in found.best)


def command_section(found: Found) -> Section:
    """How to ask for the best plan alone."""
    command = found.command
    return Section("Best plan in detail", lines=() if command is None else (command,))


def _cells(row: Ranked, has_price: bool) -> tuple[str, ...]:
    prediction = row.prediction
    mfu = "" if prediction.mfu is None else words.percent(prediction.mfu)
    rate = words.rate(prediction).rpartition(" ")[0]
    peak = show_bytes(prediction.memory.peak_bytes)
    cells = (rate, mfu, peak)
    if not has_price:
        return cells
    usd = prediction.cost.usd_per_step
    return (*cells, "" if usd is None else words.usd(usd))


def remedies(found: Found) -> Iterator[str]:
    """What is missing where nothing fits."""
    if found.best or found.nearest is None:
        return
    nearest = found.nearest
    yield (
        f"The closest plan, {nearest.plan}, needs {show_bytes(nearest.memory)}, but only "
        f"{show_bytes(nearest.usable)} per device is usable: {show_bytes(nearest.lacks)} too "
        "much."
    )
    larger = found.with_more_nodes
    if larger is not None:
        yield (
            f"With {larger.factor}x the nodes ({larger.nodes:,}) {larger.best.plan} fits: estimated "
            f"{words.seconds(larger.best.seconds)} per step, {show_bytes(larger.best.memory)} of "
            f"{show_bytes(larger.best.usable)} usable."
        )
    else:
        yield (
            "More nodes of the same kind do not help, or this cluster cannot be extended "
            "automatically."
        )


def front_section(found: Found, rows: list[Seen], title: str) -> Section:
    most = max((row.memory for row in rows), default=1.0)
    cells = tuple(
        (
            row.plan,
            "█" * max(1, round(BAR * row.memory / most)),
            step,
            show_bytes(row.memory),
        )
        for row, step in zip(rows, words.seconds_alike(row.seconds for row in rows), strict=True)
    )
    if len(found.pareto) > len(rows):
        title = f"{title}: {len(rows)} of {len(found.pareto)} Pareto-optimal plans"
    return Section(title, ("plan", "memory", "step", "peak"), cells, columns="nbrr")


def pruned_section(found: Found) -> Section:
    rows = [(reason, f"{count:,}") for reason, count in pruned(found.plans_pruned).items()]
    return Section("Excluded plans", ("reason", "plans"), tuple(rows), columns="wr")


def _html(found: Found, launch: Launch | None) -> str:
    sections = _launch_sections(launch) if launch else ()
    html: str = named("foretrain.report.search_html:render")(found, sections)
    return html
