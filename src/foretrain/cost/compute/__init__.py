"""How long kernels take: the contract and the default model."""

from foretrain.cost.compute.base import ComputeModel, KernelCosts
from foretrain.cost.compute.roofline import Roofline

__all__ = ["ComputeModel", "KernelCosts", "Roofline"]
