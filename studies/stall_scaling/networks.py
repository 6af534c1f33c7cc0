"""The networks of a study: chains of convolutions that differ in depth, width, shortcuts and normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrain.measurement.ranks import bucket_sizes

CLASSES = 10
PIXELS = 8


@dataclass(frozen=True, slots=True)
class Net:
    """A chain of 3 x 3 convolutions of one width, with or without shortcuts and normalisation."""

    depth: int
    width: int
    is_residual: bool = True
    is_normed: bool = True

    @property
    def name(self) -> str:
        words = [f"{self.depth} x {self.width}"]
        words += [] if self.is_residual else ["no residual"]
        words += [] if self.is_normed else ["no norm"]
        return ", ".join(words)

    @property
    def kind(self) -> str:
        """The part of the family that it is drawn with."""
        if not self.is_normed:
            return "no batch norm"
        return "residual" if self.is_residual else "no residual"

    def tensor_bytes(self) -> list[int]:
        """Bytes of every gradient, in the order of the layers (fp32)."""
        norm = [4 * self.width] * 2 if self.is_normed else []
        sizes = [4 * 27 * self.width, *norm]
        for _ in range(self.depth):
            sizes += [4 * 9 * self.width**2, *norm]
        return [*sizes, 4 * self.width * CLASSES, 4 * CLASSES]

    def facts(self) -> dict[str, Any]:
        sizes = self.tensor_bytes()
        return {
            "layers": self.depth + 2,
            "tensors": len(sizes),
            "bytes": sum(sizes),
            "buckets": len(bucket_sizes(sizes)),
        }


FAMILY = (
    *(Net(depth, 32) for depth in (4, 8, 16, 32)),
    *(Net(8, width) for width in (16, 64, 128, 192)),
    *(Net(16, width) for width in (64, 128)),
    *(Net(depth, 32, is_residual=False) for depth in (8, 16, 32)),
    *(Net(depth, 32, is_normed=False) for depth in (8, 16, 32)),
    Net(8, 128, is_normed=False),
)
QUICK = (Net(4, 16), Net(12, 16), Net(4, 64), Net(12, 16, is_normed=False), Net(12, 16, is_residual=False))  # fmt: skip
