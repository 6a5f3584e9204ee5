"""The types of columns, and what is asked of any."""

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
# The number of no value.
ABSENT = -1
# Below this, counting is quicker than sorting.
_FEW_NUMBERS = 4096


def numbers_in(codes: I64) -> list[int]:
    """The different numbers in a column of codes, none of them negative; ascending."""
    few = len(codes) > 0 and int(codes.max()) < _FEW_NUMBERS
    numbers: list[int] = (np.flatnonzero(np.bincount(codes)) if few else np.unique(codes)).tolist()
    return numbers
