"""Fusions beyond the usual ones (OneFlow, HugeCTR, XLA)."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import OptionalFeature, switch


@dataclass(frozen=True, slots=True)
class SpecialFusions(OptionalFeature):
    """What a stack fuses that most leave in kernels of their own."""

    # sums and activations with the batch norm before them, even where element-wise work is not fused
    fuses_behind_norms: bool = switch(False)
    # attention's softmax drops out in its own pass
    fuses_score_dropout: bool = switch(False)
    # GEMMs do the activation behind them, both ways; DLRM's interaction is one kernel
    fuses_epilogues: bool = switch(False)
    # operands of low-precision GEMMs are cast by the kernels that make them
    fuses_casts: bool = switch(False)
