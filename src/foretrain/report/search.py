"""The best plans: a table of them, the front of time against memory, what was left out and why others lose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from foretrain.analysis.memory_words import probability
from foretrain.planning.document import pruned, question
from foretrain.planning.explain import Explanation
from foretrain.planning.layerwise import LayerwiseOutcome
from foretrain.planning.partial_result import TOO_LARGE
from foretrain.planning.per_layer import described
from foretrain.planning.planner import Ranked
from foretrain.planning.taste import TRADE
from foretrain.report import words
from foretrain.report.document import (
    Axis,
    Bar,
    Chart,
    ChartPoint,
    Document,
    Figure,
    Figures,
    Guide,
    Lines,
    Section,
    Series,
    Table,
    listed,
)
from foretrain.report.prediction import stall_bars
from foretrain.searching import SearchResult, spread
from foretrain.units import counted, show_bytes

FRONT_ROWS = 8
AS_GOOD = "≈"
ROUNDING = 1e-9
FAR = 3.0
"""Plans that many times slower than the fastest are not drawn: nobody would take them, and the rest would be squeezed."""

Launch: TypeAlias = Mapping[str, Any]
"""Launch files that were written: target, folder, files, cannot."""


def search_document(
    result: SearchResult, asked: Explanation | None = None, launch: Launch | None = None
) -> Document:
    """`asked`: the answer to a why, put first."""
    return Document(
        headline(result),
        partial(_data, result, asked, launch),
        partial(_sections, result, asked, launch),
        not result.best,
        asked=asked_line(result),
        make_rows=result.rows,
        whole=_names(result, asked, launch),
    )


def _sections(
    result: SearchResult, asked: Explanation | None, launch: Launch | None
) -> Iterator[Section]:
    explanations, has_best = result.explanations, bool(result.best)
    first = [
        next(one for one in explanations if one.choice == choice)
        for choice in dict.fromkeys(one.choice for one in explanations)
    ]
    why = "Why other choices are slower" if has_best else "How far each choice is from fitting"
    rest = tuple(one.sentence for one in explanations if one not in first)
    yield Figures("Key figures", tuple(_tiles(result)))
    yield Lines("Why not " + _asked(asked), (asked.sentence,) if asked else ())
    yield _best(result)
    yield _robust(result)
    yield Lines("Best plan in detail", (result.command,) if result.command else (), kind="command")
    yield Lines("What would fit", tuple(_remedies(result)), kind="warning")
    stalls = {str(n): row.prediction.stalls for n, row in enumerate(result.best, 1)}
    yield stall_bars("Where the time goes", "plan", stalls, detail=1)
    yield front(result)
    excluded = tuple((reason, f"{n:,}") for reason, n in pruned(result.plans_pruned).items())
    yield Table("Excluded plans", ("reason", "plans"), excluded, "wr")
    yield Lines("Refined plans", tuple(_varied(result)))
    yield Lines(why, tuple(o.sentence for o in first), detail=0 if has_best else 1)
    yield Lines("… and other values", rest, detail=1)
    if (outcome := result.per_layer) is not None:
        is_best = outcome.gain is not None and outcome.gain > 0.0
        yield Lines("Strategies per layer", (per_layer(outcome),), detail=0 if is_best else 1)
    yield from _launch(launch) if launch else ()
    yield listed("Warnings", result.task.warnings)
    yield listed("Assumptions", result.task.assumptions)
    yield Lines("Notes", result.notes)


def per_layer(outcome: LayerwiseOutcome) -> str:
    """What strategies per layer came to, and how far from the best they may be."""
    looked = f"{counted(outcome.problems, 'problem')}, {outcome.solved:,} solved, {outcome.simulated:,} simulated"
    if outcome.gap is None:
        return f"No plan whose layers differ is faster ({looked})."
    is_exact = outcome.gap <= ROUNDING
    off = "" if is_exact else f"at most {words.percent(outcome.gap)} slower than possible, "
    how = f"{off}by the table of layers" if off else "the fastest possible by the table of layers"
    if outcome.gain is None:
        return f"Only plans whose layers differ fit. The slowest stage is {how} ({looked})."
    does = "saves" if outcome.gain >= 0.0 else "costs"
    return (
        f"The best plan whose layers differ {does} {words.percent(abs(outcome.gain))} against the best whose layers are "
        f"alike. Its slowest stage is {how} ({looked})."
    )


def _varied(result: SearchResult) -> Iterator[str]:
    """What was tried beyond the combinations of all choices."""
    counts = ", ".join(f"{name} of {count:,}" for name, count in result.plans_varied.items())
    if counts:
        yield (
            f"Values beside those that are combined were tried where they could still win: {counts} "
            "plans. Of the others, a lower bound on the step is above the best plan."
        )


def _names(
    result: SearchResult, asked: Explanation | None, launch: Launch | None
) -> tuple[str, ...]:
    """Plans and files that sentences speak of."""
    q, larger = question(result), result.with_more_nodes
    spoken_of = [
        *(described(row.plan) for row in result.best),
        *(row.plan for row in (*result.pareto, result.nearest) if row is not None),
        *(one.plan for one in (*result.explanations, asked) if one is not None),
        None if larger is None else larger.best.plan,
        result.command,
        *((f"{launch['folder']}/{name}" for name in launch["files"]) if launch else ()),
    ]
    return tuple(dict.fromkeys(name for name in (*spoken_of, q["model"], q["cluster"]) if name))


def _data(
    result: SearchResult, asked: Explanation | None, launch: Launch | None
) -> Mapping[str, Any]:
    document = dict(result.to_dict())
    if asked is not None:
        document["why"] = asked.to_dict()
    if launch is not None:
        document["exported"] = dict(launch)
    return document


def _launch(launch: Launch) -> Iterator[Section]:
    files = tuple(f"{launch['folder']}/{name}" for name in launch["files"])
    yield Lines(f"Launch files for the best plan: {launch['target']}", files)
    yield Lines("Warnings about these files", tuple(launch["warnings"]), kind="warning")
    yield Lines("Not expressible in these files", tuple(launch["cannot"]))


def _asked(asked: Explanation | None) -> str:
    return "" if asked is None else f"{asked.choice}={asked.value}" if asked.value else asked.choice


def headline(result: SearchResult) -> str:
    """The decision in one sentence."""
    count = counted(result.plans_valid, "plan")
    if result.best:
        best = result.best[0]
        return f"Best of {count}: {described(best.plan)}, {words.headline(best.prediction)}"
    if not result.plans_valid:
        return "No valid plan"
    if result.plans_fitting:
        return (
            f"None of {count} fits: {result.plans_fitting:,} were estimated to fit, but too "
            "narrowly: the simulation of the best shows that it does not"
        )
    text = f"None of {count} fits"
    if result.nearest is None:
        return text
    lacks = show_bytes(result.nearest.lacks)
    text += f": the closest, {result.nearest.plan}, exceeds device memory by {lacks}"
    larger = result.with_more_nodes
    if larger is not None:
        text += f"; with {larger.factor}x the nodes {larger.best.plan} fits"
    return text


def asked_line(result: SearchResult) -> str:
    """`llama3-8b on 2 x dgx-h100 · batch 256 · seq 8,192 · bf16 · megatron`."""
    q = question(result)
    parts = [
        f"{words.clean(q['model'])} on {words.clean(q['cluster'])}",
        f"batch {q['global_batch']:,}",
    ]
    if q["seq_len"]:
        parts.append(f"seq {q['seq_len']:,}")
    parts += [words.clean(q["precision"]), words.clean(q["runtime"])]
    if result.where:
        parts.append(words.clean(", ".join(result.where)))
    return " · ".join(parts)


def _best(result: SearchResult) -> Table:
    unit = next((words.rate(row.prediction).rpartition(" ")[2] for row in result.best), "")
    head = ("#", "plan", "step", unit, "MFU", "peak")
    has_price = any(row.prediction.cost.usd_per_step is not None for row in result.best)
    known = zip(_marks(result), result.best, _steps(result), strict=True)
    rows = tuple(
        (mark, described(row.plan), step, *_cells(row, has_price)) for mark, row, step in known
    )
    front = "Pareto-optimal plans (step time and memory)"
    title = f"{front if result.objective == 'pareto' else 'Best plans'}, simulated"
    if result.best:
        title += f"; {words.usable(result.best[0].prediction.memory)}"
    return Table(
        title,
        (*head, *(("per step",) if has_price else ())),
        rows,
        "rp" + "r" * (4 + has_price),
        notes=tuple(_standing(result)),
    )


def _marks(result: SearchResult) -> Iterator[str]:
    """Ranks, with a mark at plans that are as good as the fastest where there are several."""
    is_told = sum(result.as_good) > 1
    for number, is_as_good in enumerate(result.as_good, 1):
        yield f"{AS_GOOD} {number}" if is_told and is_as_good else str(number)


def _standing(result: SearchResult) -> Iterator[str]:
    """How many plans a prediction cannot tell apart, and why the first is not the fastest where it is not."""
    count = sum(result.as_good)
    if count > 1:
        yield (
            f"{AS_GOOD} {count} of these {len(result.best)} plans are as good as the fastest: the 80 % interval of the "
            "difference includes zero."
        )
    first, fastest = next(iter(result.best), None), result.fastest
    if first is None or fastest is None or result.objective not in ("time", "cost"):
        return
    if described(first.plan) != fastest.plan:
        behind = first.score.step_seconds / fastest.step_seconds - 1.0
        yield (
            f"The first plan is the simplest of those within {words.percent(TRADE)} of the fastest, {fastest.plan} "
            f"({_faster(behind)})."
        )


def _faster(behind: float) -> str:
    """`0.05 % faster`; steps that differ by rounding alone are equal."""
    return f"{100.0 * behind:.2g} % faster" if behind >= 1e-5 else "equally fast"


def _robust(result: SearchResult) -> Table:
    """The first plans where the cluster or the memory is worse than was thought."""
    rows = tuple(
        (
            str(number),
            described(row.plan),
            _longer(one.slower_network_seconds, row),
            _longer(one.straggler_seconds, row),
            "fits" if one.fits_with_more_memory else "does not fit",
            probability(one.fits_probability),
        )
        for number, (row, one) in enumerate(zip(result.best, result.robustness, strict=False), 1)
    )
    head = (
        "#",
        "plan",
        "network 10 % slower",
        "one device 10 % slower",
        "peak 5 % higher",
        "probability to fit",
    )
    return Table("If things are worse, simulated", head, rows, "rprrrr")


def _longer(seconds: float, than: Ranked) -> str:
    step = than.score.step_seconds
    return f"{words.seconds(seconds)} ({100.0 * (seconds / step - 1.0):+.1f} %)".replace("-", "−")


def _steps(result: SearchResult) -> tuple[str, ...]:
    """Step times of the best plans."""
    return words.seconds_alike(row.prediction.step_seconds for row in result.best)


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


def _remedies(result: SearchResult) -> Iterator[str]:
    """What is missing where nothing fits."""
    if result.best or result.nearest is None:
        return
    nearest = result.nearest
    yield (
        f"The closest plan, {nearest.plan}, needs {show_bytes(nearest.memory)}, but only "
        f"{show_bytes(nearest.usable)} per device is usable: {show_bytes(nearest.lacks)} too "
        "much."
    )
    larger = result.with_more_nodes
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


def _tiles(result: SearchResult) -> Iterator[Figure]:
    excluded = (n for reason, n in result.plans_pruned.items() if reason != TOO_LARGE)
    whole = result.plans_valid + sum(excluded)
    note = f"of {whole:,}, in {words.seconds(result.seconds)}"
    yield Figure("Plans looked at", f"{result.plans_valid:,}", note)
    yield Figure("Plans that fit", f"{result.plans_fitting:,}", "by estimate")
    if not result.best:
        return
    best = result.best[0].prediction
    rate, _, unit = words.rate(best).rpartition(" ")
    usable = f"of {show_bytes(best.memory.usable_bytes)} usable"
    yield Figure("Step time", words.seconds(best.step_seconds), words.interval(best))
    yield Figure("Rate", rate, unit)
    yield Figure("Memory", show_bytes(best.memory.peak_bytes), usable)
    if (money := words.money(best)) is not None:
        shown = "" if best.cost.usd_per_step is None else words.usd(best.cost.usd_per_step)
        yield Figure("Cost per step", shown, money)


def front(result: SearchResult) -> Chart:
    """Step time against memory: the front as estimated, and the best plans as simulated."""
    best = [
        (row.prediction.step_seconds, row.prediction.memory.peak_bytes, described(row.plan))
        for row in result.best
    ]
    estimated = [(row.seconds, row.memory, row.plan) for row in result.pareto]
    fastest = min((row[0] for row in (*estimated, *best)), default=math.inf)
    near = [row for row in estimated if row[0] <= FAR * fastest]
    hint = (
        "The line joins plans that no other beats in both, as estimated; numbered dots are the plans of the "
        "table above, simulated. Point at a dot for the plan."
    )
    if hidden := len(estimated) - len(near):
        hint += f" Plans of the front that are slower than {FAR:g} times the fastest lie outside ({hidden})."
    simulated = [(row, str(n)) for n, row in enumerate(best, 1) if row[0] <= FAR * fastest]
    return Chart(
        "Step time vs. memory (estimated)",
        Axis("step time", "s", is_log=False),
        Axis("peak memory of a device", "bytes", is_log=False),
        (
            Series("estimated", [_point(*row) for row in near], "stairs"),
            Series("simulated", [_point(*row, label) for row, label in simulated]),
        ),
        guides=_usable(result, [row[1] for row in (*near, *best)]),
        hint=hint,
        data=_front_table(result),
    )


def _point(seconds: float, size: float, plan: str, label: str = "") -> ChartPoint:
    kind = f"{label}. simulated" if label else "estimated"
    tip = f"{plan}\n{words.seconds(seconds)}, {show_bytes(size)} ({kind})"
    return ChartPoint(seconds, size, tip, label, bool(label), 7 if label else 4)


def _usable(result: SearchResult, sizes: list[float]) -> tuple[Guide, ...]:
    """The limit, where plans come near it."""
    usable = min((row.usable for row in result.pareto), default=math.inf)
    if not sizes or usable > 2.16 * max(sizes):
        return ()
    return (Guide(value=usable, text=f"{show_bytes(usable)} usable"),)


def _front_table(result: SearchResult) -> Table:
    rows = spread(result.pareto, FRONT_ROWS)
    most = max((row.memory for row in rows), default=1.0)
    steps = words.seconds_alike(row.seconds for row in rows)
    cells = tuple(
        (row.plan, Bar(row.memory / most), step, show_bytes(row.memory))
        for row, step in zip(rows, steps, strict=True)
    )
    title = "Step time vs. memory (estimated)"
    if len(result.pareto) > len(rows):
        title = f"{title}: {len(rows)} of {len(result.pareto)} Pareto-optimal plans"
    return Table(title, ("plan", "memory", "step", "peak"), cells, "pbrr")
