"""`python -m tests.simulation --seed N`: one run, told; exits 1 when an invariant does not hold."""

import argparse
import sys
import time

from tests.simulation.plants import PLANTS
from tests.simulation.told import told
from tests.simulation.world import FAULTS_SECONDS, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from the first on")
    parser.add_argument("--seconds", type=float, default=FAULTS_SECONDS, help="virtual seconds under faults")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="run with this planted fault")
    arguments = parser.parse_args()
    failed = 0
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        started = time.perf_counter()
        plants = PLANTS[arguments.plant].make() if arguments.plant else None
        report = run_seed(seed, plants=plants, faults_seconds=arguments.seconds)
        sys.stdout.write(f"{told(report, arguments.plant or '')}; {time.perf_counter() - started:.1f} s real\n")
        sys.stdout.flush()
        failed += bool(report.violation)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
