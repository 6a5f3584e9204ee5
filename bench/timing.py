"""CPU time of a piece of work, as the median of several runs."""

import statistics
import time
from collections.abc import Callable

RUNS = 3


def cpu_us(work: Callable[[], int]) -> float:
    """Microseconds of CPU for each of the things that `work` says it did; the median of RUNS."""
    figures = []
    for _ in range(RUNS):
        before = time.process_time()
        done = work()
        figures.append((time.process_time() - before) * 1e6 / done)
    return statistics.median(figures)
