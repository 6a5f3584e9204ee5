"""A profile: the plugins of one schedulerName, sorted into their extension points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.core.framework import (
    FilterOnePlugin,
    FilterPlugin,
    NormalizePlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScorePlugin,
    UnreservePlugin,
)


@dataclass(frozen=True, slots=True)
class Weighted:
    """A score plugin, its weight in a profile, and itself again as far as it takes part in the points around Score."""

    plugin: ScorePlugin
    weight: int
    pre_score: PreScorePlugin | None
    normalize: NormalizePlugin | None


@dataclass(slots=True)
class Profile:
    """The plugins of one schedulerName, in order, sorted into their extension points.

    Without `points` a plugin stands at every point that it has, in the order of `plugins`; else `points` has, by the names
    of a KubeSchedulerConfiguration (preFilter, score, ...), the plugins of each point in their order.
    """

    scheduler_name: str
    plugins: Sequence[Plugin]
    weights: Mapping[str, int]
    points: Mapping[str, Sequence[str]] | None = None
    queue_sort: QueueSortPlugin = field(init=False)
    pre_enqueue: list[PreEnqueuePlugin] = field(init=False)
    pre_filter: list[PreFilterPlugin] = field(init=False)
    filter: list[FilterPlugin] = field(init=False)
    filter_one: dict[str, FilterOnePlugin] = field(init=False)
    extensions: list[PreFilterExtensions] = field(init=False)
    post_filter: list[PostFilterPlugin] = field(init=False)
    pre_score: list[PreScorePlugin] = field(init=False)
    score: list[Weighted] = field(init=False)
    reserve: list[ReservePlugin] = field(init=False)
    unreserve: list[UnreservePlugin] = field(init=False)
    permit: list[PermitPlugin] = field(init=False)
    pre_bind: list[PreBindPlugin] = field(init=False)
    post_bind: list[PostBindPlugin] = field(init=False)
    by_name: dict[str, Plugin] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {plugin.name: plugin for plugin in self.plugins}
        assert len(self.by_name) == len(self.plugins), "each plugin is in a profile once"
        sorters = [plugin for plugin in self._at("queueSort") if isinstance(plugin, QueueSortPlugin)]
        assert len(sorters) == 1, "a profile has exactly one QueueSort plugin"
        self.queue_sort = sorters[0]
        self.pre_enqueue = [plugin for plugin in self._at("preEnqueue") if isinstance(plugin, PreEnqueuePlugin)]
        self.pre_filter = [plugin for plugin in self._at("preFilter") if isinstance(plugin, PreFilterPlugin)]
        self.filter = [plugin for plugin in self._at("filter") if isinstance(plugin, FilterPlugin)]
        self.filter_one = {plugin.name: plugin for plugin in self._at("filter") if isinstance(plugin, FilterOnePlugin)}
        self.extensions = [plugin for plugin in self._at("preFilter") if isinstance(plugin, PreFilterExtensions)]
        self.post_filter = [plugin for plugin in self._at("postFilter") if isinstance(plugin, PostFilterPlugin)]
        before = {plugin.name for plugin in self._at("preScore")}
        self.pre_score = [plugin for plugin in self._at("preScore") if isinstance(plugin, PreScorePlugin)]
        self.score = [
            Weighted(
                plugin,
                self.weights.get(plugin.name, 1),
                plugin if isinstance(plugin, PreScorePlugin) and plugin.name in before else None,
                plugin if isinstance(plugin, NormalizePlugin) else None,
            )
            for plugin in self._at("score")
            if isinstance(plugin, ScorePlugin) and self.weights.get(plugin.name, 1) > 0
        ]
        self.reserve = [plugin for plugin in self._at("reserve") if isinstance(plugin, ReservePlugin)]
        self.unreserve = [plugin for plugin in self._at("reserve") if isinstance(plugin, UnreservePlugin)]
        self.permit = [plugin for plugin in self._at("permit") if isinstance(plugin, PermitPlugin)]
        self.pre_bind = [plugin for plugin in self._at("preBind") if isinstance(plugin, PreBindPlugin)]
        self.post_bind = [plugin for plugin in self._at("postBind") if isinstance(plugin, PostBindPlugin)]

    def _at(self, point: str) -> Sequence[Plugin]:
        """The plugins that may stand at a point, in their order there."""
        if self.points is None:
            return self.plugins
        return [self.by_name[name] for name in self.points.get(point, ())]
