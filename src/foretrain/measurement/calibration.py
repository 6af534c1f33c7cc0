"""Calibration: what the measurements of one machine say, as tables that costs are made from. A JSON file, or a value.

`fitting.calibrate` makes one from a store. A prediction takes it as `measured`: its kernels and collectives then
stand before those that ship.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.errors import FileError
from foretrain.loading import Strict, load_json, validated
from foretrain.measurement.compute import MeasuredCompute
from foretrain.measurement.link_curves import own_curves
from foretrain.measurement.machine import Machine
from foretrain.measurement.tables import (
    DataRates,
    LinkCurve,
    MeasuredOp,
    MeasuredRoofline,
    Provenance,
    expect_positive,
)

if TYPE_CHECKING:
    from foretrain.cost.compute import ComputeModel
    from foretrain.cost.curves import OwnCurves

SCHEMA = 1
WHAT = "a calibration (create one with 'foretrain calibrate -o FILE.json')"


# Not slotted: cached_property keeps what is worked out in the instance's __dict__.
@dataclass(frozen=True)
class Calibration(Strict):
    """Costs of one machine. `device` is `local`, or the catalog's name of the device that was measured."""

    machine: Mapping[str, Any]  # of Machine.to_dict
    device: str
    threads: int | None  # of a process, on CPUs
    ops: tuple[MeasuredOp, ...]
    roofline: MeasuredRoofline | None
    links: tuple[LinkCurve, ...]
    data: DataRates
    host_seconds_per_kernel: float | None
    provenance: Provenance
    drift: float = 0.0  # deviation of a process after a second of equal work, seconds
    processes: int = 1  # that ran a kernel at once while it was timed
    schema_version: int = SCHEMA

    def __post_init__(self) -> None:
        expect_positive(self.host_seconds_per_kernel, "host_seconds_per_kernel")
        expect_positive(self.threads, "threads")
        expect_positive(self.processes, "processes")
        expect_positive(self.drift, "drift", zero=True)
        if self.schema_version != SCHEMA:
            raise ValueError(
                f"schema_version is {self.schema_version}; this version reads {SCHEMA}"
            )
        Machine.from_dict(self.machine)

    def __repr__(self) -> str:
        return f"<Calibration {self.name}>"

    @property
    def name(self) -> str:
        """For people and provenance."""
        machine = Machine.from_dict(self.machine).title
        return f"{machine}: {self.provenance.measurements} measurements ({self.digest[:12]})"

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.dumps().encode()).hexdigest()

    @cached_property
    def compute(self) -> ComputeModel:
        return MeasuredCompute(self)

    @cached_property
    def curves(self) -> OwnCurves | None:
        return own_curves(self.links, self.device, self.drift)

    # --- files ----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        row = asdict(self)
        return {"schema_version": row.pop("schema_version"), **row}

    def dumps(self) -> str:
        """One line per op and curve, so that files can be compared."""
        parts = []
        for key, value in self.to_dict().items():
            text = json.dumps(value, allow_nan=False)
            if isinstance(value, tuple) and value:
                inner = ",\n    ".join(json.dumps(one, allow_nan=False) for one in value)
                text = f"[\n    {inner}\n  ]"
            parts.append(f"  {json.dumps(key)}: {text}")
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def save(self, path: str | Path) -> None:
        """Written beside and moved into place, so that the file is there whole or not at all."""
        place = Path(path)
        beside = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            beside.write_text(self.dumps(), "utf-8")
            beside.replace(place)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise FileError(f"cannot write {place} ({error.strerror or error}).") from None

    @classmethod
    def from_dict(cls, row: object, where: str = "calibration") -> Calibration:
        """Inverse of `to_dict`; every fault at once."""
        if not isinstance(row, Mapping) or "schema_version" not in row:
            raise FileError(f"{where} is not {WHAT}: schema_version missing.")
        if row["schema_version"] != SCHEMA:
            raise FileError(
                f"{where} has schema_version {str(row['schema_version'])[:20]}; this version of Foretrain reads "
                f"{SCHEMA}. Run 'foretrain calibrate' again."
            )
        return validated(cls, row, where, FileError)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        return cls.from_dict(load_json(Path(path), WHAT), str(path))
