"""How a profile's plugin sets change the default ones (Kubernetes 1.36: apis/config/v1 mergePlugins, and the framework's
expansion of multiPoint). Pure.

`multiPoint` enables a plugin at every point that it has. Default plugins are enabled there; a profile's own entry for one of
them takes its place in the order, others come after; `disabled` takes one out, "*" all. At a single point, what is enabled
there and also by multiPoint comes first, in the order given there, then the rest of multiPoint, then what is enabled there
alone; `disabled` at that point takes out what multiPoint brought, "*" all of it: so one that is disabled and enabled at the same
point stands last there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.configuration.types import POINTS

ALL = "*"


@dataclass(frozen=True, slots=True)
class PluginSet:
    """`enabled`: (name, weight), 0 for none given; `disabled`: names, or ALL."""

    enabled: tuple[tuple[str, int], ...] = ()
    disabled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Merged:
    """The plugins of each point in order, and the weight of each at score."""

    points: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, int]


def merge(
    defaults: Sequence[tuple[str, int]],
    multi_point: PluginSet,
    sets: Mapping[str, PluginSet],
    takes_part: Callable[[str, str], bool],
) -> Merged:
    """`defaults`: name and weight of the default plugins, in order; `takes_part(plugin, point)`: whether it has that point."""
    everywhere = _merge_multi_point(defaults, multi_point)
    points = {point: _expand(point, everywhere, sets.get(point, PluginSet()), takes_part) for point in POINTS}
    # What stands at score itself has its weight from there; one that is not given, or 0, is 1.
    given = dict(everywhere) | dict(sets.get("score", PluginSet()).enabled)
    return Merged(points, {name: given.get(name) or 1 for name in points["score"]})


def _merge_multi_point(defaults: Sequence[tuple[str, int]], own: PluginSet) -> list[tuple[str, int]]:
    replaced = dict(own.enabled)
    kept: list[tuple[str, int]] = []
    if ALL not in own.disabled:
        kept = [(name, replaced.get(name, weight)) for name, weight in defaults if name not in own.disabled]
    there = {name for name, _ in kept}
    return kept + [(name, weight) for name, weight in own.enabled if name not in there]


def _expand(
    point: str,
    everywhere: Sequence[tuple[str, int]],
    own: PluginSet,
    takes_part: Callable[[str, str], bool],
) -> tuple[str, ...]:
    explicit = [name for name, _ in own.enabled]
    if ALL in own.disabled:
        return tuple(explicit)
    brought = [name for name, _ in everywhere if name not in own.disabled and takes_part(name, point)]
    overriding = [name for name in explicit if name in brought]
    rest = [name for name in brought if name not in explicit]
    alone = [name for name in explicit if name not in brought]
    return (*overriding, *rest, *alone)
