"""Sorting columns of small whole numbers: the same as numpy's, however wide they spread."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.compile.columns import distinct, first_of, order_of

COLUMNS = {
    "dense": np.array([3, 1, 3, 0, 1, 1]),
    "sparse": np.array([10**12, 5, 10**12, 7]),
    "one": np.array([4]),
    "none": np.zeros(0, dtype=np.int64),
    "wide": np.array([70_000, 2, 70_000, 40_000, 2]),
}


@pytest.mark.parametrize("keys", COLUMNS.values(), ids=COLUMNS)
def test_as_numpy_has_it(keys):
    values, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    assert [part.tolist() for part in distinct(keys)] == [values.tolist(), numbers.tolist()]
    assert [part.tolist() for part in first_of(keys)] == [first.tolist(), numbers.tolist()]
    assert order_of(keys).tolist() == np.argsort(keys, kind="stable").tolist()
