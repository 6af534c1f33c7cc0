"""A device made up so that times of kernels can be worked out by hand."""

from __future__ import annotations

from foretrain.cluster.device import Device

HAND = Device(
    "hand", "Hand", "us", "gpu", "made-up", 1e10, 1e12, (("fp32", 1e13), ("bf16", 1e14)), 1e10, "by hand",
    compute_units=10,
)  # fmt: skip
