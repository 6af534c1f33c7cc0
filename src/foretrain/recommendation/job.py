"""The job: how much is to be trained, on what data, by when and for how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from foretrain.analysis.goodput import checkpoint_bytes
from foretrain.analysis.job import length_of
from foretrain.errors import InputError, did_you_mean, hint, refuse
from foretrain.limits import Limit, shown
from foretrain.loading import Figures, Quantity, Strict, validated
from foretrain.model.graph import Model
from foretrain.model.load import load_model
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision
from foretrain.model.workload import Workload
from foretrain.resolving.defaults import optimizer_for
from foretrain.resolving.micro_batch import samples_of
from foretrain.resolving.request import Notes
from foretrain.units import parse_amount, parse_bytes, parse_seconds

MOST_BATCH = 2**24
"""Samples of a step: beyond any in use; keeps a slip of the finger from taking hours."""
Count = Annotated[float, Quantity(parse_amount)]
figure = Figures(Path(__file__).with_name("figures.yaml"))
"""What is taken where a job does not say, with sources."""


@dataclass(frozen=True, slots=True)
class Dataset(Strict):
    """Samples as they lie on storage. `prep_seconds`: CPU time of one core for one sample."""

    bytes_per_sample: Annotated[float, Quantity(parse_bytes, zero_allowed=True)]
    samples: Count | None = None
    prep_seconds: Annotated[float, Quantity(parse_seconds, zero_allowed=True)] = 0.0
    workers: int | None = None  # per device; None: all cores
    is_sharded: bool = False  # every machine always reads the same part
    source: str = ""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers: {self.workers} is not a positive whole number.")

    @property
    def bytes(self) -> float | None:
        return None if self.samples is None else self.samples * self.bytes_per_sample


_KEYS = {
    "sample": "bytes_per_sample", "samples": "samples", "prep": "prep_seconds", "workers": "workers",
    "sharded": "is_sharded",
}  # fmt: skip


def dataset(spec: str | Mapping[str, Any] | Dataset | None) -> Dataset | None:
    """From a known name, `samples=1.3M,sample=110kB,prep=5ms,workers=8`, `size=` in place of either, or itself."""
    if spec is None or isinstance(spec, Dataset):
        return spec
    if isinstance(spec, Mapping):
        return validated(Dataset, dict(spec), "data")
    known = figure.groups["datasets"]
    if spec in known:
        return validated(Dataset, dict(known[spec]), f"data {spec}")
    if "=" not in spec:
        raise InputError(
            f"unknown dataset {spec!r}.{hint(spec, known)} "
            "Or describe it: samples=1.3M,sample=110kB,prep=5ms."
        )
    return validated(Dataset, _described(spec), f"data {spec!r}")


def _described(spec: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    faults = []
    for word in filter(None, (part.strip() for part in spec.split(","))):
        key, _, value = (part.strip() for part in word.partition("="))
        if key not in (*_KEYS, "size"):
            faults.append(
                f"{key}: unknown.{did_you_mean(key, [*_KEYS, 'size'])} Known: {', '.join(_KEYS)}, size."
            )
        elif key == "sharded":
            fields[key] = value in ("", "yes", "true", "1")
        else:
            fields[key] = int(value) if key == "workers" and value.isdigit() else value
    refuse(f"data {spec!r} is invalid:", faults)
    if "size" in fields:
        size = parse_bytes(fields.pop("size"))
        if "samples" in fields and "sample" not in fields:
            fields["sample"] = size / max(1.0, parse_amount(fields["samples"]))
        elif "sample" in fields and "samples" not in fields:
            fields["samples"] = float(round(size / (parse_bytes(fields["sample"]) or 1.0)))
    return {_KEYS[key]: value for key, value in fields.items()}


@dataclass(frozen=True)
class Job:
    """`samples` are all that will be trained on, repetitions counted."""

    model: Model
    samples: float
    batch: int | None  # global; None: `batch_per_device`
    batch_per_device: int | None
    precision: str | Precision | None  # None: as usual on the devices
    optimizer: str | Optimizer | None
    data: Dataset | None
    deadline: float | None  # seconds
    budget_usd: float | None
    asked: str  # "1e12 tokens"
    state_bytes: float = 0.0  # of a checkpoint
    critical_batch: float | None = None  # samples
    assumptions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Job: {self.model.name}, {self.asked}>"

    def batch_on(self, devices: int) -> int:
        return self.batch if self.batch is not None else (self.batch_per_device or 1) * devices

    def batch_factor(self, devices: int) -> float:
        """Samples at this batch over those that far smaller ones need for the same loss: 1 + B/B_crit.

        McCandlish et al. 2018 (arXiv 1812.06162), equation 2.11; 1 where no critical batch was specified.
        """
        return 1.0 + self.batch_on(devices) / self.critical_batch if self.critical_batch else 1.0

    def steps_on(self, devices: int) -> int:
        samples = self.samples * self.batch_factor(devices)
        return max(1, ceil(samples / self.batch_on(devices)))

    def steps_per_epoch(self, devices: int) -> float | None:
        if self.data is None or self.data.samples is None:
            return None
        return self.data.samples / self.batch_on(devices)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.name,
            "asked": self.asked,
            "samples": self.samples,
            "batch": self.batch,
            "batch_per_device": self.batch_per_device,
            "critical_batch": self.critical_batch,
            "seq_len": self.model.seq_len,
            "deadline_hours": None if self.deadline is None else self.deadline / 3600.0,
            "budget_usd": self.budget_usd,
        }


def job(
    model: str | Path | Mapping[str, Any] | Model,
    *,
    tokens: float | str | None = None,
    samples: float | str | None = None,
    steps: float | str | None = None,
    epochs: float | str | None = None,
    batch: int | str | None = None,
    batch_per_device: int | None = None,
    seq: int | None = None,
    precision: str | Precision | None = None,
    optimizer: str | Optimizer | None = None,
    data: str | Mapping[str, Any] | Dataset | None = None,
    deadline: float | str | None = None,
    budget_usd: float | None = None,
    critical_batch: int | str | None = None,
) -> Job:
    """Resolve what is asked; everything that is wrong with it is told at once."""
    notes = Notes()
    built = load_model(model, seq, notes.assumptions)
    if seq is None and built.seq_len is not None and not isinstance(model, Model):
        notes.assume(f"sequence length {built.seq_len:,}", "model default", "--seq")
    # checkpoints hold the same whatever 16-bit format is trained in
    one = Workload.of(built, 1, None, precision or "bf16", optimizer or optimizer_for(built))
    described = dataset(data)
    faults: list[str] = []
    if batch is not None and batch_per_device is not None:
        faults.append("batch: specify the global batch or the batch per device, not both.")
    whole = None if batch is None else _samples(batch, "", built, notes, faults)
    for name, value in (("batch", whole), ("batch_per_device", batch_per_device)):
        if value is not None and not Limit(MOST_BATCH, "samples").allows(value):
            faults.append(f"{name}: {shown(value)} is not a whole number from 1 to {MOST_BATCH:,}.")
    if batch is None and batch_per_device is None:
        whole = _usual_batch(built, notes)
    critical = (
        None
        if critical_batch is None
        else _samples(critical_batch, "critical_batch", built, notes, faults)
    )
    amounts = {"tokens": tokens, "samples": samples, "steps": steps, "epochs": epochs}
    known = None if described is None else described.samples
    remedy = "specify a dataset, such as imagenet-1k"
    counted = 1 if batch is not None and whole is None else whole  # its own fault is told already
    length = length_of(amounts, one, counted, known, faults, remedy)
    until = None if deadline is None else parse_seconds(deadline, "deadline")
    _limit("deadline", until, faults, deadline)
    money = _limit("budget_usd", budget_usd, faults)
    if faults or length is None:
        raise InputError("invalid job:", faults=faults)
    return Job(
        built, length.samples, whole, batch_per_device, precision, optimizer, described, until, money, length.asked,
        checkpoint_bytes(one), critical, (*notes.assumptions, *notes.warnings),
    )  # fmt: skip


def _samples(
    asked: int | str, name: str, model: Model, notes: Notes, faults: list[str]
) -> int | None:
    """Samples of a batch, or None and a fault."""
    try:
        return samples_of(asked, model, notes)
    except InputError as error:
        faults.append(f"{name}: {error}" if name else str(error))
        return None


def _limit(name: str, value: float | None, faults: list[str], said: object = None) -> float | None:
    """The value, if it is one; `said`: how the user wrote it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 < value < float("inf")):
        faults.append(
            f"{name}: {shown(value if said is None else said)} must be a positive number."
        )
    return value


def _usual_batch(model: Model, notes: Notes) -> int:
    kind = "samples" if model.seq_len is None else "tokens"
    batch = max(1, int(figure("batch", kind) // (model.seq_len or 1)))
    notes.assume(
        f"global batch {batch:,}", str(figure.groups["batch"][f"{kind}_source"]), "--batch"
    )
    return batch
