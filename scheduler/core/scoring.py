"""PreScore, Score and NormalizeScore of one cycle: a column of integers in [0, 100] from each plugin that does not skip."""

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.framework import SCORE_MAX, CycleState, Profile, Stopwatch, Weighted
from scheduler.core.status import Code
from scheduler.core.table import I64, Bools, NodeTable
from services.model.pod import PodView


@dataclass(slots=True)
class Scores:
    """Over the feasible rows, in their order. `columns`: (plugin, normalised scores, weight). `error`: a plugin's fault."""

    totals: I64
    columns: list[tuple[str, I64, int]] = field(default_factory=list)
    error: str = ""


def score_nodes(
    profile: Profile, state: CycleState, pod: PodView, nodes: NodeTable, feasible: Bools, rows: I64, lap: Stopwatch
) -> Scores:
    """Scores `rows`, which are those that `feasible` marks. What a plugin answers outside [0, 100] ends it."""
    result = Scores(np.zeros(len(rows), dtype=np.int64))
    scoring: list[Weighted] = []
    for item in profile.score:
        if item.pre_score is not None:
            status = item.pre_score.pre_score(state, pod, nodes, feasible)
            lap("PreScore", item.plugin.name)
            if status.code is Code.SKIP:
                continue
            if not status.ok:
                result.error = f"plugin {item.plugin.name} could not score: {', '.join(status.reasons)}"
                return result
        scoring.append(item)
    for item in scoring:
        scores = item.plugin.score(state, pod, nodes, rows)
        if item.normalize is not None:
            scores = item.normalize.normalize(state, pod, scores)
        lap("Score", item.plugin.name)
        result.error = _fault(item.plugin.name, scores, len(rows))
        if result.error:
            return result
        result.columns.append((item.plugin.name, scores, item.weight))
        result.totals += scores * item.weight
    return result


def _fault(plugin: str, scores: I64, count: int) -> str:
    if scores.shape != (count,) or scores.dtype.kind != "i":
        return f"plugin {plugin} answered {scores.dtype} scores of shape {scores.shape} for {count} nodes"
    low, high = int(scores.min()), int(scores.max())
    if low < 0 or high > SCORE_MAX:
        return f"plugin {plugin} returned the score {low if low < 0 else high}, outside [0, {SCORE_MAX}]"
    return ""
