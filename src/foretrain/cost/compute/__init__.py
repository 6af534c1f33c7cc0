"""How long kernels take: the contract, the model that knows measurements, and the one that needs a data sheet only."""

from foretrain.cost.compute.base import ComputeModel, KernelCosts
from foretrain.cost.compute.calibrated import Calibrated
from foretrain.cost.compute.roofline import Roofline

__all__ = ["Calibrated", "ComputeModel", "KernelCosts", "Roofline"]
