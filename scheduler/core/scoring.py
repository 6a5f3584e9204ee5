"""PreScore, Score and NormalizeScore of one cycle: a column of integers in [0, 100] from each plugin that does not skip."""

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.faults import PluginFault, check_answer, shown
from scheduler.core.framework import SCORE_MAX, CycleState, Stopwatch
from scheduler.core.profile import Profile, Weighted
from scheduler.core.status import Code, Status
from scheduler.core.table import I64, Bools, NodeTable
from services.model.pod import PodView


@dataclass(slots=True)
class Scores:
    """Over the feasible rows, in their order. `columns`: (plugin, normalised scores, weight), where one number stands for the
    same everywhere. `error`: a plugin could not score.
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
    """Scores `rows`, which are those that `feasible` marks. Raises PluginFault for what is no score."""
    result = Scores()
    scoring: list[Weighted] = []
    for item in profile.score:
        plugin = item.plugin
        if item.pre_score is not None:
            status = item.pre_score.pre_score(state, pod, nodes, feasible)
            lap("PreScore", item.plugin.name)
            check_answer(item.plugin.name, "PreScore", status, Status)
            if status.code is Code.SKIP:
                continue
            if not status.ok:
                result.error = f"plugin {item.plugin.name} could not score: {', '.join(status.reasons)}"
                return result
        scoring.append(item)
    for item in scoring:
        plugin = item.plugin
        scores = plugin.score(state, pod, nodes, rows)
        if item.normalize is not None and not isinstance(scores, int):
            scores = item.normalize.normalize(state, pod, scores)
        lap("Score", item.plugin.name)
        _check_scores(plugin.name, scores, len(rows))
        result.columns.append((item.plugin.name, scores, item.weight))
    return result


def _check_scores(plugin: str, scores: I64 | int, count: int) -> None:
    if isinstance(scores, int):
        if not 0 <= scores <= SCORE_MAX:
            raise PluginFault(plugin, f"returned the score {scores}, outside [0, {SCORE_MAX}]")
        return
    if not isinstance(scores, np.ndarray):
        raise PluginFault(plugin, f"answered {shown(scores)} at Score, wanted a column of integers")
    if scores.shape != (count,) or scores.dtype != np.int64:
        raise PluginFault(plugin, f"answered {scores.dtype} scores of shape {scores.shape} for {count} nodes")
    # Read as unsigned, a negative score is larger than any other.
    if int(scores.view(np.uint64).max()) > SCORE_MAX:
        low, high = int(scores.min()), int(scores.max())
        raise PluginFault(plugin, f"returned the score {low if low < 0 else high}, outside [0, {SCORE_MAX}]")
