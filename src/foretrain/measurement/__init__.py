"""Measure real machines: operators, links, data and training runs, and what is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretrain.measurement.train_api import watch as watch

__all__ = ["watch"]


def __getattr__(name: str) -> object:
    """The one name that training scripts use loads when it is used."""
    if name != "watch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from foretrain.measurement.train_api import watch

    return watch
