"""`foretrain measure ops`, `measure links` and `measure data`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

from foretrain.cli.options import Output, Question
from foretrain.cli.streams import answer_file
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.analysis.answer import Answer
    from foretrain.asked import StepOptions
    from foretrain.cli.progress import Progress
    from foretrain.measurement.data import DataReport
    from foretrain.measurement.links import LinkReport
    from foretrain.measurement.ops import OpsReport
    from foretrain.measurement.store import Store
    from foretrain.measurement.timing import Effort
    from foretrain.measurement.torch_group import TorchGroup
    from foretrain.scenario import Scenario as Step


def ops(
    question: Question,
    output: Output,
    device: str = "",
    threads: str | None = None,
    processes: str = "1",
    budget: str | None = None,
    tolerance: float = 0.02,
    store: str | None = None,
) -> int:
    """Time the kernels that a model's training step needs on this device.

    Kernels already in the store are not timed again, so an interrupted run can be resumed.
    """
    from foretrain.measurement.backend import backend
    from foretrain.measurement.links import is_joined, spawned
    from foretrain.measurement.ops import IN_CONTEXT, measure_ops
    from foretrain.measurement.torch_group import TorchGroup

    seconds, count = _seconds(budget), _count(threads, "--threads")
    effort = dataclasses.replace(IN_CONTEXT, tolerance=_effort(tolerance).tolerance)
    together = _count(processes, "--processes") or 1
    asked = _asked(question)
    if together > 1 and not is_joined():
        return spawned(["-m", "foretrain", *sys.argv[1:]], together, answer=answer_file())
    group = TorchGroup(threads=count) if together > 1 else None

    def measure(opened: Store | None, progress: Progress) -> OpsReport:
        return measure_ops(
            [asked], opened, backend(device, count), effort=effort, budget=seconds,
            progress=progress, group=group,
        )  # fmt: skip

    return _measured(measure, "kernels", group, output, store)


def links(
    output: Output,
    processes: str = "2",
    collectives: str | None = None,
    sizes: str | None = None,
    backend: str = "",
    threads: str | None = None,
    budget: str | None = None,
    tolerance: float = 0.02,
    store: str | None = None,
) -> int:
    """Time collectives and point-to-point messages on this host, or across hosts under torchrun.

    torchrun --nnodes 2 --nproc-per-node 8 … -m foretrain measure links
    """
    from foretrain.measurement.links import is_joined, measure_links, spawned, wanted
    from foretrain.measurement.torch_group import TorchGroup

    names = wanted(None if collectives is None else [n.strip() for n in collectives.split(",")])
    counted, seconds = _sizes(sizes), _seconds(budget)
    together, count = _count(processes, "--processes") or 2, _count(threads, "--threads")
    if not is_joined():
        if together < 2:
            raise InputError("--processes: measuring links needs two processes or more.")
        return spawned(["-m", "foretrain", *sys.argv[1:]], together, answer=answer_file())
    group = TorchGroup(backend, count)

    def measure(opened: Store | None, progress: Progress) -> LinkReport:
        return measure_links(
            group, opened, collectives=names, sizes=counted, effort=_effort(tolerance, 1.0),
            budget=seconds, progress=progress,
        )  # fmt: skip

    return _measured(measure, "sizes", group, output, store)


def _measured(
    measure: Callable[[Store | None, Progress], Answer],
    what: str,
    group: TorchGroup | None,
    output: Output,
    store: str | None,
) -> int:
    """By this process alone, or as one of a group, whose first keeps the store and gives the answer."""
    from foretrain.cli.output import give
    from foretrain.cli.progress import Progress
    from foretrain.measurement.launching import end_at_once
    from foretrain.measurement.store import Store

    with ExitStack() as stack:
        if group is not None:
            stack.enter_context(group)
        is_first = group is None or group.rank == 0
        opened = stack.enter_context(Store.open(store)) if is_first else None
        progress = stack.enter_context(Progress(what, quiet=output.quiet or not is_first))
        report = measure(opened, progress)
    code = give(report, output) if is_first else 0
    return code if group is None else end_at_once(code)


def data(
    output: Output,
    places: list[Path] | None = None,
    dataset: str | None = None,
    samples: str = "200",
    workers: str | None = None,
    size: str = "256MB",
    folder: Path | None = None,
    device: str = "",
    store: str | None = None,
) -> DataReport:
    """Measure data throughput: reading (cold and warm cache), preprocessing per worker, host-to-device copies."""
    from foretrain import measure
    from foretrain.units import parse_bytes

    return measure.data(
        places or (),
        dataset=dataset,
        samples=_count(samples, "--samples") or 1,
        workers=_workers(workers),
        size=parse_bytes(size),
        folder=folder,
        device=device,
        store=store,
    )


# --- options ----------------------------------------------------------------------------------------


def _asked(question: Question) -> Step:
    """The question with what an eager process on one device has where nothing was said."""
    from foretrain.measure import one_process

    given = dataclasses.replace(question, on=question.on or "1 x cpu-host").asked()
    on, model = given.pop("on"), given.pop("model")
    return one_process(model, on if question.on else None, cast("StepOptions", given))


def _effort(tolerance: float, seconds: float = 2.0) -> Effort:
    from foretrain.measurement.timing import Effort

    if not 0.0 < tolerance < 1.0:
        raise InputError(f"--tolerance {tolerance}: must be between 0 and 1, such as 0.02.")
    return Effort(tolerance, seconds)


def _seconds(text: str | None) -> float | None:
    from foretrain.units import parse_seconds

    if text is None:
        return None
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise InputError(f"--budget {text!r} is not a time, such as 60s.")
    return seconds


def _count(text: str | None, flag: str) -> int | None:
    from foretrain.units import parse_count

    if text is None:
        return None
    count = parse_count(text, flag)
    if not 1 <= count <= 1_000_000:
        raise InputError(f"{flag} {text!r} is not a whole number from 1 to a million.")
    return count


def _sizes(text: str | None) -> tuple[int, ...]:
    from foretrain.measurement.links import SIZES
    from foretrain.units import parse_bytes

    if text is None:
        return SIZES
    sizes = sorted({int(parse_bytes(word.strip())) for word in text.split(",")})
    if not sizes or sizes[0] < 4 or sizes[-1] > 2**36:
        raise InputError(f"--sizes {text!r}: from 4 bytes to 64 GiB, such as 1KiB,1MiB.")
    return tuple(sizes)


def _workers(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    return tuple(_count(word.strip(), "--workers") or 1 for word in text.split(","))
