"""Number formats of a training run: what the matrix units see and what memory holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from foretrain.errors import ModelError, hint
from foretrain.loading import load_own_yaml

_TABLE = Path(__file__).with_name("precisions.yaml")


@dataclass(frozen=True, slots=True)
class Precision:
    """`matmul` is the data-sheet rate that GEMMs run at; the rest are bytes per element."""

    name: str
    matmul: str  # fp32 | tf32 | fp16 | bf16 | fp8 | fp4
    attention: str  # attention stays in 16 bit where GEMMs go lower
    activation_bytes: float
    gemm_input_bytes: float  # operands as the GEMM reads them
    weight_bytes: float
    gradient_bytes: float
    has_master_weights: bool  # an fp32 copy beside the working weights
    cast_reads: float = 1.0  # passes over a tensor to bring it into the GEMM's format
    frozen_bytes: float | None = None  # of frozen weights of products; None: as of others

    @property
    def quantises(self) -> bool:
        """Whether GEMMs read their operands in a narrower format than activations are kept in."""
        return self.gemm_input_bytes < self.activation_bytes

    @property
    def frozen_weight_bytes(self) -> float:
        """Of weights of products that are not trained."""
        return self.weight_bytes if self.frozen_bytes is None else self.frozen_bytes

    @property
    def wide(self) -> Precision:
        """The same where GEMMs stay in the format of activations, as attention does."""
        return _wide(self) if self.quantises else self

    def element_bytes(self, element: str) -> float:
        match element:
            case "activation":
                return self.activation_bytes
            case "gemm_input":
                return self.gemm_input_bytes
            case "weight" | "frozen":
                return self.weight_bytes
            case "fp32":
                return 4.0
            case "index":
                return 8.0
            case "mask":
                return 1.0
        raise ModelError(f"unknown element type {element!r}.")


@cache
def _wide(precision: Precision) -> Precision:
    return replace(
        precision, matmul=precision.attention, gemm_input_bytes=precision.activation_bytes
    )


@cache
def precisions() -> Mapping[str, Precision]:
    """The table of `precisions.yaml`."""
    rows: dict[str, dict[str, Any]] = load_own_yaml(_TABLE)["precisions"]
    return {name: Precision(name=name, **row) for name, row in rows.items()}


def frozen_as(precision: Precision, stored: str) -> Precision:
    """The precision of a run that keeps weights which are not trained in a format of their own."""
    rows: dict[str, float] = load_own_yaml(_TABLE)["frozen"]
    name = stored.lower().replace("_", "-")
    name = name if name in rows else _spellings().get(name, name)
    if name not in rows:
        raise ModelError(f"unknown format {stored!r} of frozen weights.{hint(stored, rows)}")
    return replace(precision, frozen_bytes=float(rows[name]))


@cache
def _spellings() -> Mapping[str, str]:
    """Every spelling, in small letters and with hyphens, and the name it stands for."""
    rows: dict[str, list[str]] = load_own_yaml(_TABLE)["aliases"]
    own = {name: name for name in precisions()}
    return own | {alias: name for name, aliases in rows.items() for alias in aliases}


def precision(name: str | Precision) -> Precision:
    if isinstance(name, Precision):
        return name
    known = precisions()
    name = _spellings().get(name.lower().replace("_", "-"), name)
    if name not in known:
        raise ModelError(f"unknown precision {name!r}.{hint(name, known)}")
    return known[name]
