"""Which machines one process plays: the catalogue that ships with the package, and fleets written as `dgx-h100=2,cpu-64=4`."""

from collections.abc import Iterable
from functools import cache
from importlib import resources

import yaml

from kubelet_sim.core.catalogue import parse_catalogue
from kubelet_sim.core.shapes import Catalogue, Machine, expand

FLEET_MACHINES_MAX = 20_000


@cache
def load_catalogue() -> Catalogue:
    """The shapes of `kubelet_sim/core/catalogue.yaml`. Raises CatalogueError."""
    text = resources.files("kubelet_sim.core").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    return parse_catalogue(yaml.safe_load(text))


def fleet_machines(catalogue: Catalogue, fleet: Iterable[str]) -> list[Machine]:
    """The machines of `fleet`, named `<shape>-<n>` from 0.

    Raises:
        ValueError: an entry that is not shape=count, an unknown or repeated shape, or too many machines.
    """
    machines: list[Machine] = []
    seen: set[str] = set()
    for entry in fleet:
        name, equals, count = (part.strip() for part in entry.partition("="))
        if not equals or not count.isascii() or not count.isdigit():
            raise ValueError(f"{entry!r} is not shape=count, such as dgx-h100=2")
        if name not in catalogue.shapes:
            raise ValueError(f"{name!r} is no shape; there are {', '.join(sorted(catalogue.shapes))}")
        if name in seen:
            raise ValueError(f"{name!r} is named twice")
        seen.add(name)
        if len(machines) + int(count) > FLEET_MACHINES_MAX:
            raise ValueError(f"more than {FLEET_MACHINES_MAX} machines in one process")
        machines.extend(expand(catalogue.shapes[name], f"{name}-{number}") for number in range(int(count)))
    return machines
