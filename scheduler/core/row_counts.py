"""How many of something each row of the node table has: kept sparse, with a dense column from when one is asked for."""

import numpy as np

from scheduler.core.columns import I64


class RowCounts:
    """`rows` holds what is not zero. Whoever reads a column does not write it."""

    __slots__ = ("_dense", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self._dense: I64 | None = None

    def add(self, row: int, amount: int) -> None:
        count = self.rows.get(row, 0) + amount
        if count:
            self.rows[row] = count
        else:
            self.rows.pop(row, None)
        if self._dense is not None:
            if row < len(self._dense):
                self._dense[row] = count
            else:
                self._dense = None

    def column(self, size: int) -> I64:
        """The counts of rows 0 to size - 1."""
        dense = self._dense
        if dense is None or len(dense) < size:
            dense = self._dense = np.zeros(size + size // 2, dtype=np.int64)
            if self.rows:
                dense[list(self.rows)] = list(self.rows.values())
        return dense[:size]
