"""The mesh on virtual time: twenty runs with every kind of fault, each held to the invariants at every transaction.

A run that found something prints its story and the command that shows it again. What the runs would find is shown by
faults that are planted from here.
"""

import os
import subprocess
import sys
from functools import cache

import pytest

from tests.simulation.plants import PLANTS
from tests.simulation.told import told
from tests.simulation.world import Report, run_seed

pytestmark = pytest.mark.simulation

SEEDS = range(1, 21)
INVARIANTS = ("1", "2", "3", "4", "5", "6", "7", "ended", "read")
FAULTS = ("crash", "pause", "cut", "store down", "stalled watch", "rough network", "rough store")


@cache
def report_of(seed: int) -> Report:
    return run_seed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_holds_under_faults(seed: int) -> None:
    report = report_of(seed)
    sys.stdout.write(told(report) + "\n")
    assert not report.violation, told(report)
    assert report.steps > 0
    missing = [name for name in INVARIANTS if not report.checks.get(name)]
    assert not missing, f"nothing was checked of {missing}: {told(report)}"
    assert report.placements > 0, told(report)


def test_every_kind_of_fault_happens_within_the_seeds() -> None:
    happened: set[str] = set()
    for seed in SEEDS:
        happened.update(report_of(seed).faults)
    assert happened == set(FAULTS)


# The same seeds without the plant are those above.
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_fault_is_found(name: str) -> None:
    plant = PLANTS[name]
    for seed in SEEDS[: plant.seeds_max]:
        report = run_seed(seed, plants=plant.make())
        if report.violation:
            story = told(report, name)
            sys.stdout.write(story + "\n")
            assert report.invariant in plant.invariants, story
            assert f"--seed {seed} --plant {name}" in story
            assert report.story, "a violation has a story"
            return
    pytest.fail(f"not found within {plant.seeds_max} seeds")


def test_a_seed_replays_exactly_also_where_strings_hash_otherwise() -> None:
    here = run_seed(3, faults_seconds=40.0)
    again = run_seed(3, faults_seconds=40.0)
    assert (here.digest, here.steps, here.checks) == (again.digest, again.steps, again.checks)
    for hash_seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "3", "--seconds", "40"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert here.digest in said
    assert run_seed(4, faults_seconds=40.0).digest != here.digest
