"""PreScore, Score and NormalizeScore of one cycle: a column of integers in [0, 100] from each plugin that does not skip."""

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.framework import SCORE_MAX, CycleState, Stopwatch
from scheduler.core.profile import Profile, Weighted
from scheduler.core.status import Code
from scheduler.core.table import I64, Bools, NodeTable
from services.model.pod import PodView


@dataclass(slots=True)
class Scores:
    """Over the feasible rows, in their order. `columns`: (plugin, normalised scores, weight), where one number stands for the
    same everywhere. `error`: a plugin's fault.
    """

    columns: list[tuple[str, I64 | int, int]] = field(default_factory=list)
    error: str = ""

    def totals(self, count: int) -> I64:
        """The weighted sum for each of the `count` rows."""
        total = np.full(count, sum(part * weight for _, part, weight in self.columns if isinstance(part, int)))
        for _, part, weight in self.columns:
            if not isinstance(part, int):
                total += part if weight == 1 else part * weight
        return total


def score_nodes(
    profile: Profile, state: CycleState, pod: PodView, nodes: NodeTable, feasible: Bools, rows: I64, lap: Stopwatch
) -> Scores:
    """Scores `rows`, which are those that `feasible` marks. What a plugin answers outside [0, 100] ends it."""
    result = Scores()
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
        if item.normalize is not None and not isinstance(scores, int):
            scores = item.normalize.normalize(state, pod, scores)
        lap("Score", item.plugin.name)
        result.error = _fault(item.plugin.name, scores, len(rows))
        if result.error:
            return result
        result.columns.append((item.plugin.name, scores, item.weight))
    return result


def _fault(plugin: str, scores: I64 | int, count: int) -> str:
    if isinstance(scores, int):
        return (
            "" if 0 <= scores <= SCORE_MAX else f"plugin {plugin} returned the score {scores}, outside [0, {SCORE_MAX}]"
        )
    if scores.shape != (count,) or scores.dtype != np.int64:
        return f"plugin {plugin} answered {scores.dtype} scores of shape {scores.shape} for {count} nodes"
    # Read as unsigned, a negative score is larger than any other.
    if int(scores.view(np.uint64).max()) > SCORE_MAX:
        low, high = int(scores.min()), int(scores.max())
        return f"plugin {plugin} returned the score {low if low < 0 else high}, outside [0, {SCORE_MAX}]"
    return ""
