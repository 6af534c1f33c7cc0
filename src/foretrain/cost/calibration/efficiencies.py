"""`efficiencies.yaml` as values: which share of its data sheet a device reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from foretrain.cluster.device import Device
from foretrain.loading import load_own_yaml


@dataclass(frozen=True, slots=True)
class AttentionShares:
    forward: float
    backward: float
    narrow: float  # factor for narrow heads
    half_length: float  # visible keys per query at which half the rate is reached


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of one device or architecture; the file says what each one means."""

    name: str
    source: str
    gemm: Mapping[str, float]
    conv: Mapping[str, float]
    grouped: float
    attention: Mapping[str, AttentionShares]
    memory: float
    embedding: float
    vector: float
    start_seconds: float
    fill: float

    def gemm_share(self, dtype: str) -> float:
        return self.gemm.get(dtype, self.gemm["other"])

    def conv_share(self, dtype: str) -> float:
        return self.conv.get(dtype, self.conv["other"])

    def attention_shares(self, implementation: str) -> AttentionShares:
        return self.attention.get(implementation, self.attention["flash"])


@dataclass(frozen=True, slots=True)
class Tile:
    """`rate` is the speed of a tile size relative to the best one: small tiles reuse operands less."""

    rows: int
    columns: int
    rate: float


@dataclass(frozen=True, slots=True)
class SpecialConvolutions:
    """Convolutions of stride 1 that libraries compute otherwise than the general ones, in these dtypes."""

    dtypes: tuple[str, ...]
    winograd: float  # gain of 3x3 kernels
    least_output: int  # … whose output is that large


@dataclass(frozen=True, slots=True)
class EfficiencyTable:
    """All entries and the constants they share."""

    devices: Mapping[str, Efficiencies]
    substitutes: Mapping[str, tuple[str, ...]]
    tiles: tuple[Tile, ...]
    splits: tuple[int, ...]
    narrow_head: int
    attention_rows: int
    compute_units: int
    special_convolutions: SpecialConvolutions
    spread: Mapping[str, float]
    unknown_device_spread: float

    def of(self, device: Device) -> tuple[Efficiencies, bool]:
        """The entry for a device, and whether it is one for itself or its architecture."""
        for key in (device.identity, device.architecture):
            if key in self.devices:
                return self.devices[key], True
        return self.devices[device.kind], device.kind == "cpu"


@cache
def table() -> EfficiencyTable:
    """The table that ships with the package."""
    return read_table(load_own_yaml(Path(__file__).with_name("efficiencies.yaml")))


def read_table(data: Mapping[str, Any]) -> EfficiencyTable:
    rows: dict[str, dict[str, Any]] = {}
    for name, given in data["devices"].items():
        base = rows[given["like"]] if "like" in given else {}
        rows[name] = base | {key: value for key, value in given.items() if key != "like"}
    special = data["special_convolutions"]
    return EfficiencyTable(
        devices={name: _entry(name, row) for name, row in rows.items()},
        substitutes={dtype: tuple(others) for dtype, others in data["substitutes"].items()},
        tiles=tuple(Tile(*row) for row in data["tiles"]),
        splits=tuple(data["splits"]),
        narrow_head=data["narrow_head"],
        attention_rows=data["attention_rows"],
        compute_units=data["compute_units"],
        special_convolutions=SpecialConvolutions(
            **{**special, "dtypes": tuple(special["dtypes"])},
        ),
        spread=data["spread"],
        unknown_device_spread=data["unknown_device_spread"],
    )


def _entry(name: str, row: Mapping[str, Any]) -> Efficiencies:
    attention = {key: AttentionShares(**shares) for key, shares in row["attention"].items()}
    return Efficiencies(name=name, **{**row, "attention": attention})
