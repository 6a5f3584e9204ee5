"""The plugins that a configuration may name: the literal registry, and those of installed packages.

A package offers plugins as entry points of the group `orrery.scheduler.plugins`: the entry's name is the plugin's, its
value a class or function that is called with the plugin's arguments (a mapping, empty when the file has none) and returns
the plugin. One that cannot be loaded is a problem for the profile that names it, and for nobody else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from scheduler.core.framework import Plugin
from scheduler.plugins.registry import PLUGINS

GROUP = "orrery.scheduler.plugins"
OutOfTree = Callable[[Mapping[str, Any]], Plugin]


@dataclass(frozen=True, slots=True)
class Registry:
    """`own` plugins take typed arguments; `out_of_tree` ones any; `broken`: why an entry point could not be loaded."""

    own: Mapping[str, Callable[[], Plugin]]
    out_of_tree: Mapping[str, OutOfTree] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        return sorted({*self.own, *self.out_of_tree, *self.broken})


def installed_plugins() -> Registry:
    """Looks once through the installed packages. A name of ours cannot be taken by another."""
    found: dict[str, OutOfTree] = {}
    broken: dict[str, str] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in PLUGINS:
            continue
        try:
            found[entry.name] = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's module: whatever it raises is a sentence for its user
            broken[entry.name] = f"{entry.value}: {type(error).__name__}: {error}"
    return Registry(PLUGINS, found, broken)
