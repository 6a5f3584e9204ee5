"""One profile of a file: which plugins stand at which point, made with their arguments; and what is wrong with that."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from protos.orrery.v1 import scheduler_configuration_pb2 as pb
from scheduler.configuration.arguments import ARGUMENTS_WITHOUT_EFFECT, MAKERS, POINTS_WITHOUT_EFFECT, WITHOUT_EFFECT
from scheduler.configuration.checks import Fail
from scheduler.configuration.merge import ALL, PluginSet, merge
from scheduler.configuration.points import has_point, points_of
from scheduler.configuration.registry import Registry
from scheduler.configuration.types import API_VERSION, POINTS, ProfileConfiguration
from scheduler.core.framework import Plugin
from scheduler.plugins.registry import WEIGHTS
from services.wire.codec import FieldErrors, from_json
from services.wire.field_errors import Steps

MULTI_POINT = "multiPoint"
ALL_NODES = "all nodes are evaluated and scored, always"


class ProfileReader:
    """Reads one profile. `data` is it as parsed from the file, `message` the same as a message."""

    def __init__(self, data: Any, message: pb.KubeSchedulerProfile, registry: Registry, fail: Fail) -> None:
        self._data = data
        self._message = message
        self._registry = registry
        self._fail = fail
        self._plugins: dict[str, Plugin] = {}

    def read(self, scheduler_name: str) -> ProfileConfiguration:
        sets = {point: self._set(point) for point in (MULTI_POINT, *POINTS)}
        for name in self._wanted(sets):
            self._make(name)
        self._check_sets()
        known = {
            point: PluginSet(tuple(item for item in given.enabled if self._stands_at(item[0], point)), given.disabled)
            for point, given in sets.items()
        }
        defaults = [(name, WEIGHTS.get(name, 0)) for name in self._registry.own]
        merged = merge(defaults, known[MULTI_POINT], known, lambda name, point: has_point(self._plugins[name], point))
        self._check_points(merged.points)
        used = {name for names in merged.points.values() for name in names}
        self._check_arguments(used)
        named = {name for given in sets.values() for name, _ in given.enabled}
        return ProfileConfiguration(
            scheduler_name,
            merged.points,
            merged.weights,
            {name: plugin for name, plugin in self._plugins.items() if name in used},
            {name: why for name, why in WITHOUT_EFFECT.items() if name in named}
            | {
                f"{name} at {point}": why
                for (name, point), why in POINTS_WITHOUT_EFFECT.items()
                if any(name == item[0] for item in sets[point].enabled)
            }
            | (
                {"percentageOfNodesToScore": ALL_NODES}
                if self._message.HasField("percentage_of_nodes_to_score")
                else {}
            ),
        )

    def _stands_at(self, name: str, point: str) -> bool:
        return name in self._plugins and (point == MULTI_POINT or has_point(self._plugins[name], point))

    def _entries(self, point: str, which: str) -> Iterator[tuple[Steps, pb.SchedulerPlugin]]:
        field = "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in point)
        for at, item in enumerate(getattr(getattr(self._message.plugins, field), which)):
            yield ("plugins", point, which, at), item

    def _set(self, point: str) -> PluginSet:
        return PluginSet(
            tuple((item.name, item.weight) for _, item in self._entries(point, "enabled")),
            frozenset(item.name for _, item in self._entries(point, "disabled")),
        )

    def _wanted(self, sets: Mapping[str, PluginSet]) -> list[str]:
        named = [name for given in sets.values() for name, _ in given.enabled]
        return list(dict.fromkeys((*self._registry.own, *named)))

    # Making plugins.

    def _make(self, name: str) -> None:
        registry = self._registry
        at, args = self._arguments_of(name)
        steps: Steps = ("pluginConfig", at, "args")
        if name in registry.out_of_tree:
            try:
                plugin = registry.out_of_tree[name](dict(args or {}))
                # Looks at every method once: whatever a plugin does instead of having one, it does here.
                good = isinstance(plugin, Plugin) and plugin.name == name and bool(points_of(plugin))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's plugin: whatever it raises is a sentence here
                self._fail(steps if args else ("plugins",), f"{name} cannot be made: {type(error).__name__}: {error}")
                return
            if not good:
                why = "is no Plugin of that name with an extension point"
                self._fail(("plugins",), f"{name} is offered by a package, but what it makes {why}")
                return
            self._plugins[name] = plugin
        elif name in MAKERS:
            cls, maker = MAKERS[name]
            message = cls() if args is None else self._read_arguments(name, args, cls, steps)
            if message is not None:
                self._plugins[name] = maker(message, lambda inner, why: self._fail((*steps, *inner), why))
            else:
                self._plugins[name] = registry.own[name]()
        elif name in registry.own:
            self._plugins[name] = registry.own[name]()

    def _arguments_of(self, name: str) -> tuple[int, Any]:
        for at, item in enumerate(self._message.plugin_config):
            if item.name == name:
                return at, self._raw_arguments(at)
        return 0, None

    def _raw_arguments(self, at: int) -> Any:
        entries = self._data.get("pluginConfig") if isinstance(self._data, dict) else None
        entry = entries[at] if isinstance(entries, list) and at < len(entries) else None
        return entry.get("args") if isinstance(entry, dict) else None

    def _read_arguments(self, name: str, args: Any, cls: Any, steps: Steps) -> Any:
        try:
            message = from_json(args, cls)
        except FieldErrors as error:
            for inner, (_, why) in zip(error.steps, error.errors, strict=True):
                self._fail((*steps, *inner), why)
            return None
        if message.api_version not in ("", API_VERSION):
            self._fail((*steps, "apiVersion"), f"{message.api_version!r} is not {API_VERSION}")
        if message.kind not in ("", f"{name}Args"):
            self._fail((*steps, "kind"), f"{message.kind!r} is not {name}Args")
        return message

    # Checking.

    def _known(self, name: str) -> bool:
        return name in self._registry.own or name in self._registry.out_of_tree or name in WITHOUT_EFFECT

    def _unknown(self, steps: Steps, name: str) -> None:
        if name in self._registry.broken:
            self._fail(steps, f"the plugin {name} cannot be loaded from {self._registry.broken[name]}")
            return
        close = difflib.get_close_matches(name, [*self._registry.names(), *WITHOUT_EFFECT], n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(self._registry.names())}"
        self._fail(steps, f"there is no plugin {name!r}; {hint}")

    def _check_sets(self) -> None:
        for point in (MULTI_POINT, *POINTS):
            seen: set[str] = set()
            for steps, item in self._entries(point, "enabled"):
                if not item.name:
                    self._fail((*steps, "name"), "is missing")
                elif item.name in seen:
                    self._fail((*steps, "name"), f"{item.name!r} is enabled twice")
                elif item.name == ALL:
                    self._fail((*steps, "name"), "'*' can be disabled, not enabled: each plugin needs its place")
                elif not self._known(item.name):
                    self._unknown((*steps, "name"), item.name)
                elif (
                    item.name in self._plugins
                    and not self._stands_at(item.name, point)
                    and (item.name, point) not in POINTS_WITHOUT_EFFECT
                ):
                    has = ", ".join(points_of(self._plugins[item.name])) or "none"
                    self._fail((*steps, "name"), f"{item.name} does not extend {point}; its points are {has}")
                if item.weight < 0:
                    self._fail((*steps, "weight"), f"{item.weight} must not be negative")
                seen.add(item.name)
            for steps, item in self._entries(point, "disabled"):
                if not item.name:
                    self._fail((*steps, "name"), "is missing")
                elif item.name != ALL and not self._known(item.name):
                    self._unknown((*steps, "name"), item.name)

    def _check_points(self, points: Mapping[str, tuple[str, ...]]) -> None:
        sorters = points["queueSort"]
        if len(sorters) != 1:
            has = ", ".join(sorters) or "none"
            self._fail(("plugins", "queueSort"), f"exactly one queue sort plugin must be enabled; enabled are {has}")
        if not points["bind"]:
            self._fail(("plugins", "bind"), "at least one bind plugin is needed; DefaultBinder is the one there is")

    def _check_arguments(self, used: set[str]) -> None:
        seen: set[str] = set()
        for at, item in enumerate(self._message.plugin_config):
            steps: Steps = ("pluginConfig", at)
            if not item.name:
                self._fail((*steps, "name"), "is missing")
            elif item.name in seen:
                self._fail((*steps, "name"), f"{item.name!r} is configured twice")
            elif not self._known(item.name):
                self._unknown((*steps, "name"), item.name)
            elif item.name in ARGUMENTS_WITHOUT_EFFECT:
                self._check_without_effect(item.name, self._raw_arguments(at), (*steps, "args"))
            elif item.name in WITHOUT_EFFECT:
                if self._raw_arguments(at):
                    self._fail((*steps, "args"), f"{item.name} takes no arguments")
            elif item.name not in used:
                self._fail(steps, f"{item.name} is enabled at no point, so its arguments would have no effect")
            elif item.name in self._registry.own and item.name not in MAKERS and self._raw_arguments(at):
                self._fail((*steps, "args"), f"{item.name} takes no arguments")
            seen.add(item.name)

    def _check_without_effect(self, name: str, args: Any, steps: Steps) -> None:
        cls, check = ARGUMENTS_WITHOUT_EFFECT[name]
        message = self._read_arguments(name, args, cls, steps) if args is not None else None
        if message is not None:
            check(message, lambda inner, why: self._fail((*steps, *inner), why))
