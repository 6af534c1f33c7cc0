"""Sorting columns of small whole numbers: classes, shapes, streams. A table does it in one pass."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Ints

SPARSE = 4
"""A table of so many rows for every entry is no longer cheaper than sorting."""


def distinct(keys: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """The different keys, ascending, and for each entry which of them it is; none is below zero."""
    bound = int(keys.max(initial=0)) + 1
    if bound > SPARSE * len(keys):
        values, numbers = np.unique(keys, return_inverse=True)
        return values.astype(np.int64), numbers.reshape(-1)
    is_used = np.zeros(bound, dtype=np.bool_)
    is_used[keys] = True
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[keys]


def count_distinct(keys: NDArray[np.generic]) -> int:
    """How many different keys there are. (`np.unique` would load masked arrays for it, a fiftieth of a cold call.)"""
    ordered = np.sort(keys)
    return min(len(keys), 1) + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


def first_of(keys: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Where each of the different keys, ascending, stands first, and for each entry which of them it is."""
    values, numbers = distinct(keys)
    first = np.empty(len(values), dtype=np.int64)
    first[numbers[::-1]] = np.arange(len(keys) - 1, -1, -1)  # of several the last written stays
    return first, numbers


def order_of(keys: NDArray[np.integer]) -> NDArray[np.intp]:
    """What sorts the keys and leaves equal ones in place."""
    if int(keys.max(initial=0)) <= np.iinfo(np.int16).max and keys.min(initial=0) >= 0:
        keys = keys.astype(np.int16)  # numpy sorts numbers of 16 bits by their digits
    return np.argsort(keys, kind="stable")
