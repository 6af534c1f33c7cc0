"""Foretrain predicts distributed training before the cluster is rented."""

from __future__ import annotations

__version__ = "0.1.0"
