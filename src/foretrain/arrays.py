"""The columns everything is computed in: numpy arrays, named by what one value is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]  # what graphs and programs are stored in
Bools = NDArray[np.bool_]
Objects = NDArray[np.object_]
