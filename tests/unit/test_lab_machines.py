"""`--shape` and `--nodes` to a fleet."""

import pytest

from services.lab.errors import LabError
from services.lab.machines import FLEET_DEFAULT, fleet


@pytest.mark.parametrize(
    ("shapes", "nodes", "wanted"),
    [
        ([], None, FLEET_DEFAULT),
        ([], 0, ""),
        (["dgx-h100"], None, "dgx-h100=1"),
        (["dgx-h100=3", "l40s-4"], None, "dgx-h100=3,l40s-4=1"),
        (["dgx-h100=3,l40s-4"], 5, "dgx-h100=3,l40s-4=2"),
        (["dgx-h100", "l40s-4"], 5, "dgx-h100=3,l40s-4=2"),
        ([], 7, "dgx1-v100=2,dgx-a100=2,dgx-h100=1,l40s-4=1,cpu-64=1"),
        (["dgx-h100=2"], 2, "dgx-h100=2"),
    ],
)
def test_machines_are_counted_and_spread(shapes: list[str], nodes: int | None, wanted: str) -> None:
    assert fleet(shapes, nodes) == wanted


@pytest.mark.parametrize(
    ("shapes", "nodes", "says"),
    [
        (["dgx-h900"], None, "'dgx-h900' is no machine shape; there are "),
        (["dgx-h100=x"], None, "is not SHAPE=COUNT"),
        (["dgx-h100", "dgx-h100=2"], None, "named twice"),
        (["dgx-h100=2"], 3, "--nodes 3 contradicts"),
        (["dgx-h100=2", "l40s-4"], 1, "--nodes 1 contradicts"),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_sentence(shapes: list[str], nodes: int | None, says: str) -> None:
    with pytest.raises(LabError, match=says):
        fleet(shapes, nodes)
