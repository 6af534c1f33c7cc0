"""Which kernels a stack runs, and how far they are from the best ones."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import Feature, number, switch, word


@dataclass(frozen=True, slots=True)
class Kernels(Feature):
    """The kernels of a layer: what is fused with what, and in which implementation."""

    attention: str = word("flash", "flash", "flash3", "triton", "flash1", "cudnn", "unfused")
    # what a case that names none gets on devices with fp8
    attention_since_hopper: str = word("", "", "flash", "flash3", "cudnn")
    fuses_elementwise: bool = switch(True)
    # RMS norms are one kernel even where element-wise work is not fused
    fuses_norms: bool = switch(True)
    # rotary positions where element-wise work is not fused
    rotary: str = word(
        "halves", "halves", "complex", "matrices", "copies", needs=("rotary positions",)
    )
    # cross entropy in one pass, where element-wise work is fused at all
    fuses_loss: bool = switch(True)
    # feature maps; if not, 16-bit convolutions transpose what they read
    channels_last: bool = switch(True, needs=("convolutions",))
    # low-precision GEMMs keep their input as they read it
    keeps_quantised: bool = switch(False)
    # time of its kernels over that of the best ones measured alone
    kernel_slowdown: float = number(1.0, 0.01, 100.0)
