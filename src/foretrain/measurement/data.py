"""Measure data: how fast this machine reads training data, prepares it and brings it to the device."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from foretrain.errors import FileError, InputError
from foretrain.measurement.backend import Backend, torch_module
from foretrain.measurement.machine import Machine
from foretrain.measurement.page_cache import (
    CHUNK,
    available_bytes,
    can_drop,
    data_files,
    drop,
    fill,
    total_bytes,
)
from foretrain.measurement.records import Measurement, MeasurementReport, data_key
from foretrain.measurement.store import Store
from foretrain.measurement.timing import Effort, repeated

SPARE = 0.5  # of free memory and disk that a file of our own may take
SIDE, CROP = 256, 224  # pixels of the image that stands for a sample where no data set is named


@dataclass(frozen=True, slots=True)
class DataRow:
    what: str  # fetch | prep | host_to_device
    detail: str
    amount: float  # bytes or samples
    seconds: float
    spread: float
    repeats: int
    was_known: bool

    @property
    def rate(self) -> float:
        """Bytes or samples a second."""
        return self.amount / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "detail": self.detail,
            "amount": self.amount,
            "seconds": self.seconds,
            "per_second": self.rate,
            "spread": self.spread,
            "repeats": self.repeats,
            "was_known": self.was_known,
        }


@dataclass(frozen=True, slots=True, repr=False)
class DataReport(MeasurementReport):
    """What `measure data` did."""

    rows: tuple[DataRow, ...]
    store: str = ""  # where the times are kept

    def to_dict(self) -> dict[str, Any]:
        return {"data": [row.to_dict() for row in self.rows], "store": self.store}


@dataclass(frozen=True, slots=True)
class DataSession:
    """What the parts of `measure data` share."""

    store: Store
    machine: Machine
    effort: Effort
    repeats: int = 5

    def row(
        self, what: str, detail: str, amount: float, key: dict[str, Any],
        measure: Callable[[], Sequence[float]],
    ) -> DataRow:  # fmt: skip
        known = self.store.known("data", key, self.machine)
        timed = known or Measurement.of("data", key, measure(), self.machine)
        if known is None:
            self.store.add(timed)
        return DataRow(
            what, detail, amount, timed.seconds, timed.spread, timed.repeats, known is not None
        )


# --- fetch ------------------------------------------------------------------------------------------


@contextmanager
def data_to_read(
    places: Sequence[str | Path], size: float, folder: Path | None
) -> Iterator[tuple[Path, ...]]:
    """The files of a data set, or a file of our own where none is named; gone again afterwards."""
    if places:
        files = data_files(places)
        if not total_bytes(files):
            raise FileError(f"{places[0]}: no data to read.")
        yield files
        return
    where = folder or Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(dir=where, prefix="foretrain-data-") as scratch:
        path = Path(scratch) / "data"
        _write(path, int(min(size, SPARE * _free(where), SPARE * available_bytes())))
        yield (path,)


def _free(folder: Path) -> float:
    disk = os.statvfs(folder)
    return float(disk.f_bavail * disk.f_frsize)


def _write(path: Path, size: int) -> None:
    """Bytes that no file system can compress away."""
    with path.open("wb") as stream:
        for _ in range(max(1, size // CHUNK)):
            stream.write(os.urandom(CHUNK))
        stream.flush()
        os.fsync(stream.fileno())


def fetch_rows(session: DataSession, files: Sequence[Path]) -> list[DataRow]:
    """Reading the files once through: out of storage, and out of the page cache."""
    size = total_bytes(files)

    def row(cache: str, before: Callable[[Sequence[Path]], object]) -> DataRow:
        key = data_key("fetch", bytes=size, cache=cache, files=len(files))
        measure = partial(_reads, files, session.repeats, before)
        return session.row("fetch", cache, size, key, measure)

    cold = [row("cold", drop)] if can_drop() else []
    return [*cold, row("warm", lambda _: None)] if fill(files) else cold


def _reads(
    files: Sequence[Path], repeats: int, before: Callable[[Sequence[Path]], object]
) -> list[float]:
    taken = []
    for _ in range(repeats):
        before(files)
        began = time.perf_counter()
        for path in files:
            with path.open("rb", buffering=0) as stream:
                while stream.read(CHUNK):
                    pass
        taken.append(time.perf_counter() - began)
    return taken


# --- preparation ------------------------------------------------------------------------------------


class Images:
    """Samples where no data set is named: a picture is cropped, flipped and normalised, as for ImageNet."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        torch = torch_module()
        if not 0 <= number < self.count:
            raise IndexError(number)
        generator = torch.Generator().manual_seed(number)
        picture = torch.randint(0, 256, (3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
        top, left = number % (SIDE - CROP), (7 * number) % (SIDE - CROP)
        crop = picture[:, top : top + CROP, left : left + CROP].flip(2)
        return crop.float().div_(255.0).sub_(0.45).div_(0.225)


def dataset_of(name: str | None, samples: int) -> tuple[Any, str]:
    """A data set by `package.module:attribute` (or a function that returns one), and what to call it."""
    if name is None:
        return Images(samples), f"image {SIDE} to {CROP}"
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InputError(f"--dataset {name!r}: expected package.module:attribute.")
    try:
        dataset = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"--dataset {name!r} cannot be loaded: {error}.") from None
    dataset = dataset() if callable(dataset) and not hasattr(dataset, "__getitem__") else dataset
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or not len(dataset):
        raise InputError(
            f"--dataset {name!r} is not a map-style dataset (with __getitem__ and __len__)."
        )
    return dataset, name


def prep_rows(
    session: DataSession, dataset: Any, name: str, workers: Sequence[int], samples: int
) -> list[DataRow]:
    """Samples through a loader with so many workers. One worker's rate is what one core prepares."""
    rows = []
    for count in workers:
        asked = min(samples * count, len(dataset))
        key = data_key("prep", samples=asked, workers=count, dataset=name)

        def measure(count: int = count, asked: int = asked) -> list[float]:
            return [_loaded(dataset, asked, count) for _ in range(session.repeats)]

        rows.append(session.row("prep", f"workers: {count}", asked, key, measure))
    return rows


def _loaded(dataset: Any, samples: int, workers: int) -> float:
    """Seconds of the samples after the first few, since workers take a while to start."""
    loading = torch_module().utils.data
    wanted = [number % len(dataset) for number in range(samples + workers)]
    loader = loading.DataLoader(
        loading.Subset(dataset, wanted), batch_size=None, num_workers=workers
    )
    arrivals = iter(loader)
    for _ in range(workers):  # one from each: all have started
        next(arrivals)
    began = time.perf_counter()
    for _ in arrivals:
        pass
    return time.perf_counter() - began


# --- to the device ----------------------------------------------------------------------------------


def copy_rows(session: DataSession, backend: Backend, sizes: Sequence[int]) -> list[DataRow]:
    """From host memory to the device: pinned to a GPU; on a CPU a copy within memory."""
    torch = torch_module()
    rows = []
    for size in sizes:
        source = torch.zeros(size // 4)
        source = source.pin_memory() if backend.name == "cuda" else source
        target = backend.normal(size // 4)
        key = data_key("host_to_device", bytes=size, device=backend.device)

        def measure(target: Any = target, source: Any = source) -> Sequence[float]:
            return repeated(
                lambda calls: backend.elapsed(lambda _: target.copy_(source, non_blocking=True), calls),
                session.effort,
            )  # fmt: skip

        rows.append(session.row("host_to_device", backend.device, size, key, measure))
    return rows
