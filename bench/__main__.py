"""`python -m bench [NAME...]`: runs the benchmarks, all or those named, and prints what they measured."""

import platform
import sys
from collections.abc import Callable

from bench import apiserver, scheduler

BENCHES: dict[str, Callable[[], None]] = {"scheduler": scheduler.main, "apiserver": apiserver.main}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"there is no bench {', '.join(unknown)}; there are: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    print(f"Python {platform.python_version()} on {platform.machine()}; CPU time, median of three runs")
    for name in names or BENCHES:
        BENCHES[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
