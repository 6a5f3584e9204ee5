"""Which machines a mesh has: `--shape` and `--nodes` of `orrery up` turned into kubelet_sim's fleet."""

from collections.abc import Sequence

from kubelet_sim.fleet import load_catalogue
from services.lab.errors import LabError

# A small GPU cluster made of real machines.
FLEET_DEFAULT = "dgx1-v100=1,dgx-a100=1,dgx-h100=1,l40s-4=1,cpu-64=2"


def shape_names() -> list[str]:
    return sorted(load_catalogue().shapes)


def fleet(shapes: Sequence[str], nodes: int | None) -> str:
    """kubelet_sim's fleet: "dgx-h100=2,l40s-4=1".

    Each of `shapes` is NAME, NAME=COUNT, or several of these with commas. `nodes` is the number of machines in all; those
    that no count takes go evenly over the shapes without one, the first of them getting the odd ones.

    Raises:
        LabError: an unknown shape, a count that is no number, or numbers that contradict each other.
    """
    counts: dict[str, int | None] = {}
    for entry in (part.strip() for text in shapes or [FLEET_DEFAULT] for part in text.split(",")):
        name, given, count = entry.partition("=")
        if name not in load_catalogue().shapes:
            raise LabError(f"{name!r} is no machine shape; there are {', '.join(shape_names())}")
        if given and not (count.isascii() and count.isdigit()):
            raise LabError(f"{entry!r} is not SHAPE=COUNT, such as dgx-h100=2")
        if name in counts:
            raise LabError(f"shape {name!r} is named twice")
        counts[name] = int(count) if given else None
    if nodes is not None and not shapes:
        counts = dict.fromkeys(counts)
    return ",".join(f"{name}={count}" for name, count in _spread(counts, nodes).items() if count)


def _spread(counts: dict[str, int | None], nodes: int | None) -> dict[str, int]:
    fixed = sum(count for count in counts.values() if count is not None)
    free = [name for name, count in counts.items() if count is None]
    if nodes is None:
        return {name: 1 if count is None else count for name, count in counts.items()}
    left = nodes - fixed
    if left < 0 or (left and not free):
        raise LabError(f"--nodes {nodes} contradicts the counts of --shape, which make {fixed}; give one of them")
    share, odd = divmod(left, len(free)) if free else (0, 0)
    return {name: count if count is not None else share + (free.index(name) < odd) for name, count in counts.items()}
