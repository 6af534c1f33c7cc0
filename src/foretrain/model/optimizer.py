"""Optimizers: what they keep per parameter and what one update moves through memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from foretrain.errors import ModelError, hint
from foretrain.loading import load_own_yaml
from foretrain.model.precision import Precision

MASTER_BYTES = 4.0  # master weights are fp32
MOMENT_BYTES = 4.0  # and so are moments


@dataclass(frozen=True, slots=True)
class Optimizer:
    """`state_bytes`: fp32 moments per parameter, without the master copy that the precision may add."""

    name: str
    state_bytes: float
    flops_per_parameter: float
    sparse_state_bytes: float | None = None  # of tables stepped row by row, where that differs
    # False: gradients are computed but never applied (benchmarks without a step)
    has_update: bool = True

    def update_flops(self, parameters: float) -> float:
        return self.flops_per_parameter * parameters

    def update_bytes(self, parameters: float, precision: Precision) -> float:
        """Device-memory traffic of one update.

        Gradient and moments are read, moments written back; the master copy is read and written where there
        is one, and the working weight is written (read too, where it is its own master).
        """
        if not self.has_update:
            return 0.0
        weight = precision.weight_bytes * (1 if precision.has_master_weights else 2)
        master = 2 * MASTER_BYTES if precision.has_master_weights else 0.0
        return parameters * (precision.gradient_bytes + 2 * self.state_bytes + master + weight)

    @property
    def table_state_bytes(self) -> float:
        """Moments per parameter of tables whose rows are stepped as they are met."""
        return self.state_bytes if self.sparse_state_bytes is None else self.sparse_state_bytes

    def memory_bytes(self, parameters: float, precision: Precision) -> float:
        """What stays in memory between updates: moments and the master copy."""
        master = MASTER_BYTES if precision.has_master_weights and self.has_update else 0.0
        return parameters * (self.state_bytes + master)


@cache
def optimizers() -> Mapping[str, Optimizer]:
    """The table of `optimizers.yaml`."""
    path = Path(__file__).with_name("optimizers.yaml")
    rows: dict[str, dict[str, Any]] = load_own_yaml(path)["optimizers"]
    return {name: Optimizer(name=name, **row) for name, row in rows.items()}


def optimizer(name: str | Optimizer) -> Optimizer:
    if isinstance(name, Optimizer):
        return name
    known = optimizers()
    if name not in known:
        raise ModelError(f"unknown optimizer {name!r}.{hint(name, known)}")
    return known[name]
