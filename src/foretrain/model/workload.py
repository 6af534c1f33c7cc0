"""What is trained: a model, and how many samples of which length and precision make one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrain.errors import ModelError, refuse
from foretrain.limits import BATCH
from foretrain.model import optimizer as optimizers
from foretrain.model import precision as precisions
from foretrain.model.graph import Model
from foretrain.model.load import load_model
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision


@dataclass(frozen=True, slots=True)
class DataSource:
    """The source of the samples. `prep_seconds_per_sample` is time on one CPU worker.

    >>> from foretrain import DataSource, predict
    >>> slow = DataSource(bytes_per_sample=110e3, prep_seconds_per_sample=0.05, workers=4)
    >>> predict("resnet50", on="1 x dgx-h100", plan="dp8", batch=512, data=slow).bottleneck
    'prep'
    """

    bytes_per_sample: float
    prep_seconds_per_sample: float = 0.0
    workers: int = 1  # per device

    def __post_init__(self) -> None:
        faults = [
            f"{name}: {getattr(self, name)} is negative."
            for name in ("bytes_per_sample", "prep_seconds_per_sample")
            if getattr(self, name) < 0
        ]
        if self.workers < 1:
            faults.append(f"workers: {self.workers} is not a positive whole number.")
        refuse("invalid data source:", faults)


@dataclass(frozen=True, slots=True)
class Workload:
    """One optimizer step over `global_batch` samples. `seq_len` is None if samples are not sequences.

    >>> from foretrain import Workload
    >>> Workload.of("llama3-8b", batch=256, seq=8192)
    <Workload llama3-8b: batch 256, sequence 8,192, bf16, adam>
    """

    model: Model
    global_batch: int
    seq_len: int | None
    precision: Precision
    optimizer: Optimizer
    data: DataSource | None = None

    def __post_init__(self) -> None:
        if not BATCH.allows(self.global_batch):
            raise ModelError(f"global batch: {BATCH.fault(self.global_batch)}")
        if self.seq_len != self.model.seq_len:
            raise ModelError(
                f"sequence length {self.seq_len} does not match the {self.model.seq_len} that "
                f"{self.model.name} was built with. Build both with Workload.of(model, seq=…)."
            )

    def __repr__(self) -> str:
        length = "" if self.seq_len is None else f", sequence {self.seq_len:,}"
        how = f"{self.precision.name}, {self.optimizer.name}"
        return f"<Workload {self.model.name}: batch {self.global_batch:,}{length}, {how}>"

    @property
    def tokens(self) -> int | None:
        """Tokens per step; None if samples are not sequences."""
        return None if self.seq_len is None else self.seq_len * self.global_batch

    @classmethod
    def of(
        cls,
        model: str | Path | Mapping[str, Any] | Model,
        batch: int,
        seq: int | None = None,
        precision: str | Precision = "bf16",
        optimizer: str | Optimizer = "adam",
        data: DataSource | None = None,
    ) -> Workload:
        """A workload from names: `Workload.of("llama3-8b", batch=256, seq=8192)`."""
        built = load_model(model, seq)
        return cls(
            built,
            batch,
            built.seq_len,
            precisions.precision(precision),
            optimizers.optimizer(optimizer),
            data,
        )
