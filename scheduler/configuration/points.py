"""Which extension points a plugin has, by the names of its methods."""

from scheduler.core.framework import (
    FilterPlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScorePlugin,
    UnreservePlugin,
)
from scheduler.plugins.default_binder import DefaultBinder

_PROTOCOLS: dict[str, tuple[type, ...]] = {
    "preEnqueue": (PreEnqueuePlugin,),
    "queueSort": (QueueSortPlugin,),
    "preFilter": (PreFilterPlugin,),
    "filter": (FilterPlugin,),
    "postFilter": (PostFilterPlugin,),
    "preScore": (PreScorePlugin,),
    "score": (ScorePlugin,),
    "reserve": (ReservePlugin, UnreservePlugin),
    "permit": (PermitPlugin,),
    "preBind": (PreBindPlugin,),
    # The bind itself is the shell's, which submits it to the API server; DefaultBinder stands for it.
    "bind": (DefaultBinder,),
    "postBind": (PostBindPlugin,),
}


def has_point(plugin: Plugin, point: str) -> bool:
    """Whether `plugin` takes part at `point`, a name of types.POINTS."""
    return isinstance(plugin, _PROTOCOLS[point])


def points_of(plugin: Plugin) -> list[str]:
    return [point for point in _PROTOCOLS if has_point(plugin, point)]
