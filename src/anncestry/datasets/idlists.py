"""Lists of ids, one row a query."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def isin_rows(ids: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each id of (q, a) is in the same row of `others` (q, b), bool (q, a); ids may be any int64.

    Each (row, id) becomes one number, so that one np.isin answers for all rows without memory for (q, a, b).
    """
    known, positions = np.unique(others, return_inverse=True)
    unknown = len(known)
    offset = np.arange(len(ids), dtype=np.int64)[:, np.newaxis] * (unknown + 1)
    places = np.minimum(np.searchsorted(known, ids), unknown - 1)
    places = np.where(known[places] == ids, places, unknown)
    found: NDArray[np.bool_] = np.isin(places + offset, positions.reshape(others.shape) + offset)
    return found
