"""The document of a compiled program: rank classes, communicators, shapes with their items, tasks per stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from foretrain.compile.execution import (
    KIND_NAMES,
    PHASE_NAMES,
    Communication,
    Communicator,
    Compute,
    Copy,
    ExecutionGraph,
    Item,
    Work,
)
from foretrain.forecast import Compiled
from foretrain.report import words
from foretrain.report.document import Document, Lines, Section, Table, listed
from foretrain.scenario import Scenario
from foretrain.units import counted, show_bytes, show_count

T = TypeVar("T")

TASKS_SHOWN = 1000
_PHASE_LETTER = ("F", "B", "W", "U")


def graph_document(graph: ExecutionGraph, asked: Scenario, dump: bool = False) -> Document:
    """A summary of the program that `asked` is compiled to; with `dump` every shape and every task too."""
    fold = graph.fold
    question = {"question": asked.to_dict(), "assumptions": list(asked.assumptions)}
    return Document(
        f"{counted(graph.tasks, 'task')} of {counted(len(graph.shape_ptr) - 1, 'shape')} on "
        f"{counted(len(graph.streams), 'stream')}; {counted(int(fold.counts.sum()), 'rank')} in "
        f"{counted(fold.classes, 'class', 'classes')}",
        lambda: {**question, **_data(graph, dump)},
        partial(_sections, graph, asked, dump),
        asked=words.asked_line(asked.to_dict()),
    )


def compiled_document(graph: Compiled) -> Document:
    return graph_document(graph, graph.asked)


def _sections(graph: ExecutionGraph, asked: Scenario, dump: bool) -> Iterator[Section]:
    yield _classes(graph)
    yield _communicators(graph)
    yield _stages(graph)
    yield _streams(graph)
    if dump:
        yield from _shapes(graph)
        yield _tasks(graph)
    yield listed("Assumptions", asked.assumptions)


def communicator_name(communicator: Communicator) -> str:
    """`tp group`, `pp shift +1`, `pp ends`."""
    axes = "·".join(communicator.axes)
    if communicator.kind != "shift":
        return f"{axes} {communicator.kind}"
    return f"{axes} shift {communicator.offset:+d}{' cyclic' if communicator.wraps else ''}"


def describe(work: Work) -> str:
    """One work in one line."""
    if isinstance(work, Compute):
        kernel = work.kernel
        shape = "×".join(str(size) for size in kernel.shape)
        again = " recomputed" if work.is_recomputed else ""
        return (
            f"{work.op} {kernel.phase}{again}: {kernel.kind} {shape} {kernel.dtype} "
            f"{show_count(kernel.flops)} FLOP, {show_bytes(kernel.bytes)}"
        )
    if isinstance(work, Communication):
        group = communicator_name(work.group)
        return f"{work.collective} {show_bytes(work.bytes)} on {group} ({work.purpose})"
    if isinstance(work, Copy):
        return f"copy {work.direction} {show_bytes(work.bytes)}"
    return f"{work.kind} {work.samples:g} samples"


def task_name(graph: ExecutionGraph, task: int) -> str:
    """`F3`, `B0.1` (chunk 1), `all_reduce`: short enough for a row of them."""
    kind = KIND_NAMES[graph.task_kind[task]]
    letter = _PHASE_LETTER[graph.task_phase[task]]
    micro, chunk = int(graph.task_micro[task]), int(graph.task_chunk[task])
    name = letter + (str(micro) if micro >= 0 else "") + (f".{chunk}" if chunk > 0 else "")
    return name if kind == "chain" else f"{kind}:{name}"


def stream_tasks(graph: ExecutionGraph) -> list[list[int]]:
    """Tasks of each stream in order; a task that holds several streams is in each."""
    owner = graph.queued
    order = np.lexsort((owner, graph.stream_ids))
    bounds = np.searchsorted(graph.stream_ids[order], np.arange(len(graph.streams) + 1))
    return [owner[order[low:high]].tolist() for low, high in itertools.pairwise(bounds)]


def _classes(graph: ExecutionGraph) -> Table:
    fold = graph.fold
    rows = tuple(
        (str(k), str(int(fold.stage_of[k])), f"{int(fold.counts[k]):,}", str(int(fold.examples[k])))
        for k in range(fold.classes)
    )
    return Table("Rank classes", ("class", "stage", "ranks", "for example"), rows)


def _communicators(graph: ExecutionGraph) -> Table:
    rows = tuple(
        (
            communicator_name(communicator),
            f"{len(folded.groups):,}",
            str(folded.groups.shape[1]),
            str(len(folded.examples)),
            " ".join(str(int(rank)) for rank in folded.groups[0][:8])
            + (" …" if folded.groups.shape[1] > 8 else ""),
        )
        for communicator, folded in graph.fold.groups.items()
        if len(folded.groups)
    )
    return Table("Communicators", ("", "groups", "ranks each", "classes", "first group"), rows)


def _stages(graph: ExecutionGraph) -> Table:
    rows = tuple(
        (
            str(stage.index),
            " ".join(f"{name}×{count}" for name, count in stage.blocks),
            show_count(stage.parameters),
            *(
                show_bytes(size)
                for size in (stage.weights, stage.gradients, stage.optimizer, stage.buffers)
            ),
        )
        for stage in graph.stages
    )
    head = ("stage", "blocks", "parameters", "weights", "gradients", "optimizer", "buffers")
    return Table("Stages", head, rows, left=2)


def _streams(graph: ExecutionGraph) -> Table:
    rows = tuple(
        (f"class {rank_class} {name}", f"{len(tasks):,}")
        for (rank_class, name), tasks in zip(graph.streams, stream_tasks(graph), strict=True)
    )
    return Table("Streams", ("stream", "tasks"), rows)


def folded(sequence: Sequence[T], longest: int = 64) -> list[tuple[int, Sequence[T]]]:
    """Runs as (times, block): at each place the repetition that covers most, blocks up to `longest`."""
    runs: list[tuple[int, Sequence[T]]] = []
    at = 0
    while at < len(sequence):
        times, size = 1, 1
        for width in range(1, min(longest, (len(sequence) - at) // 2) + 1):
            block, count = sequence[at : at + width], 1
            while sequence[at + count * width : at + (count + 1) * width] == block:
                count += 1
            if count > 1 and count * width > times * size:
                times, size = count, width
        runs.append((times, sequence[at : at + size]))
        at += times * size
    return runs


def _shapes(graph: ExecutionGraph) -> Iterator[Lines]:
    uses = np.bincount(graph.task_shape, minlength=len(graph.shape_ptr) - 1)
    for index in range(len(graph.shape_ptr) - 1):
        low, high = graph.shape_ptr[index], graph.shape_ptr[index + 1]
        lines: list[str] = []
        for times, block in folded(graph.shape_items[low:high].tolist()):
            if times > 1:
                lines.append(f"{times} times:")
            lines += [("· " if times > 1 else "") + _item(graph.items[i]) for i in block]
        title = f"Shape {index}: {counted(int(high - low), 'item')}, run by {counted(int(uses[index]), 'task')}"
        yield Lines(title, lines or ("nothing to do",))


def _item(item: Item) -> str:
    text = describe(item.work)
    return text if item.beside is None else f"{text} | concurrently: {describe(item.beside)}"


def _tasks(graph: ExecutionGraph) -> Table:
    rows = []
    for (rank_class, name), tasks in zip(graph.streams, stream_tasks(graph), strict=True):
        runs = folded([task_name(graph, task) for task in tasks[:TASKS_SHOWN]])
        shown = " ".join(_run(times, block) for times, block in runs)
        more = len(tasks) - TASKS_SHOWN
        rows.append(
            (f"class {rank_class} {name}", shown + (f" … {more:,} more" if more > 0 else ""))
        )
    return Table("Tasks by stream, in order", ("stream", "tasks"), tuple(rows), left=2)


def _run(times: int, block: Sequence[str]) -> str:
    if times == 1:
        return " ".join(block)
    return f"{block[0]}×{times}" if len(block) == 1 else f"({' '.join(block)})×{times}"


def _data(graph: ExecutionGraph, dump: bool) -> dict[str, Any]:
    fold = graph.fold
    document: dict[str, Any] = {
        "tasks": graph.tasks,
        "ranks": int(fold.counts.sum()),
        "classes": [
            {"class": k, "stage": int(fold.stage_of[k]), "ranks": int(fold.counts[k]), "example": int(fold.examples[k])}
            for k in range(fold.classes)
        ],
        "communicators": [
            {"name": communicator_name(c), "groups": len(g.groups), "ranks_each": int(g.groups.shape[1])}
            for c, g in fold.groups.items()
        ],
        "stages": [
            {
                "stage": s.index, "parameters": s.parameters, "weights": s.weights, "gradients": s.gradients,
                "optimizer": s.optimizer, "buffers": s.buffers, "blocks": dict(s.blocks),
            }
            for s in graph.stages
        ],
        "streams": [{"class": rank_class, "stream": name} for rank_class, name in graph.streams],
    }  # fmt: skip
    if dump:
        document["shapes"] = [
            [_item(item) for item in graph.shape(index)]
            for index in range(len(graph.shape_ptr) - 1)
        ]
        document["stream_tasks"] = stream_tasks(graph)
        document["task"] = {
            "kind": [KIND_NAMES[kind] for kind in graph.task_kind.tolist()],
            "phase": [PHASE_NAMES[phase] for phase in graph.task_phase.tolist()],
            "shape": graph.task_shape.tolist(),
            "class": graph.task_class.tolist(),
            "stage": graph.task_stage.tolist(),
            "chunk": graph.task_chunk.tolist(),
            "micro": graph.task_micro.tolist(),
            "memory": graph.task_memory.tolist(),
        }
    return document
