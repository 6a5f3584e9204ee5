"""What the last cycle found, for the next pod that asks for the same.

A Deployment's pods come one after the other and differ in name alone. Between two of them little changes: the node that
took the one before, perhaps a few others. Where every plugin that had something to say looks at a node's own state
(`Plugin.looks_at`), the verdicts and scores of all other nodes still hold, so only the changed rows are asked again. A
plugin that looks at the whole cluster is asked each time, and must have as little to say as before. Whenever anything
else has changed, or a changed row no longer takes the pod, the whole cycle runs: same answer, only slower.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from scheduler.core.faults import PluginFault, check_answer, shown
from scheduler.core.filtering import Filtering
from scheduler.core.framework import SCORE_MAX, CycleState, LooksAt, PreFilterPlugin, PreFilterResult, Stopwatch
from scheduler.core.profile import Profile, Weighted
from scheduler.core.scoring import Scores
from scheduler.core.status import Code, Status
from scheduler.core.table import I64, Bools, NodeTable
from services.model.pod import PodView

# More changed rows than this are dearer one by one than all at once.
CHANGED_ROWS_MAX = 8


@runtime_checkable
class RowFilter(Protocol):
    """A Filter that answers for one row of the table as it is; as cheap as it can be."""

    name: str

    def takes_row(self, pod: PodView, nodes: NodeTable, row: int) -> bool: ...


@runtime_checkable
class RowScore(Protocol):
    """A Score of one row, the same as in its column."""

    name: str

    def score_one(self, state: CycleState, pod: PodView, nodes: NodeTable, row: int) -> int: ...


@dataclass(slots=True)
class Last:
    """One whole cycle's result. `ranks` orders the feasible rows; `owned`: the arrays are copies that may be written."""

    pod: PodView
    nodes: NodeTable
    static_version: int
    changes: int
    filtering: Filtering
    feasible: Bools
    rows: I64
    scores: Scores
    totals: I64
    ranks: I64
    evaluated: int
    owned: bool = False


class Repeats:
    """Of one profile. `find` before a cycle, `keep` after one that chose among several nodes."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._last: Last | None = None
        # Reserve and Permit may read what earlier points wrote into the state, and a repeated cycle has none.
        at_the_end = [plugin.name for plugin in profile.reserve] + [plugin.name for plugin in profile.permit]
        self._off = any(profile.by_name[name].looks_at is LooksAt.CLUSTER for name in at_the_end)
        self._filters_by_name: dict[str, RowFilter] = {
            plugin.name: plugin for plugin in profile.plugins if isinstance(plugin, RowFilter)
        }
        self._scores_by_name: dict[str, RowScore] = {
            plugin.name: plugin for plugin in profile.plugins if isinstance(plugin, RowScore)
        }
        self._row_filters: list[RowFilter] = []
        self._row_scores: dict[str, RowScore] = {}
        self._asked: list[PreFilterPlugin] = []
        self._asked_scores: list[Weighted] = []

    def keep(self, last: Last) -> None:
        """Remembers a cycle. Whether the next may go by it is looked at when one comes that could."""
        self._last = None if self._off else last

    def find(self, pod: PodView, nodes: NodeTable, lap: Stopwatch) -> Last | None:
        """The last cycle's result brought up to date for `pod`; None where the whole cycle has to run."""
        last, self._last = self._last, None
        if last is None or not _same(pod, nodes, last):
            return None
        changed = nodes.changes.since(last.changes)
        if changed is None or len(changed) > CHANGED_ROWS_MAX:
            return None
        if not last.owned and not self._take(last):
            return None
        if not self._cluster_is_silent(pod, nodes, last):
            return None
        if not all(self._renew(pod, nodes, last, row) for row in changed):
            return None
        last.changes = nodes.changes.now
        lap("Score", "Repeat")
        self._last = last
        return last

    def _take(self, last: Last) -> bool:
        """Makes a cycle's result one that can be brought up to date; False where somebody cannot be asked so."""
        filtering = last.filtering
        special = filtering.refused is not None or filtering.named is not None or filtering.refusals
        if special or filtering.crowded or filtering.on_nominated_node or not self._sort_plugins(last):
            return False
        last.scores.columns = [
            (name, part if isinstance(part, int) else part.copy(), weight) for name, part, weight in last.scores.columns
        ]
        last.owned = True
        return True

    def _sort_plugins(self, last: Last) -> bool:
        """Who is to be asked for a changed row, and who each time."""
        self._row_filters, self._row_scores, self._asked, self._asked_scores = [], {}, [], []
        skipped = last.filtering.skipped
        for plugin in self._profile.filter:
            if plugin.name in skipped or plugin.looks_at is LooksAt.STATIC:
                continue
            row_filter = self._filters_by_name.get(plugin.name)
            if plugin.looks_at is not LooksAt.NODE or row_filter is None:
                return False
            self._row_filters.append(row_filter)
        for pre in self._profile.pre_filter:
            if pre.looks_at is LooksAt.CLUSTER:
                if pre.name not in skipped:
                    return False
                self._asked.append(pre)
        parts = {name: part for name, part, _ in last.scores.columns}
        for item in self._profile.score:
            name, looks_at = item.plugin.name, item.plugin.looks_at
            part = parts.get(name)
            if looks_at is LooksAt.CLUSTER:
                if part is not None and not isinstance(part, int):
                    return False
                self._asked_scores.append(item)
            elif part is not None and looks_at is LooksAt.NODE:
                row_score = self._scores_by_name.get(name)
                if isinstance(part, int) or row_score is None:
                    return False
                self._row_scores[name] = row_score
        return True

    def _cluster_is_silent(self, pod: PodView, nodes: NodeTable, last: Last) -> bool:
        """Whether those who look at everything have no more to say than before."""
        state = CycleState()
        for pre in self._asked:
            result = pre.pre_filter(state, pod, nodes)
            check_answer(pre.name, "PreFilter", result, PreFilterResult)
            if result.status.code is not Code.SKIP:
                return False
        before = {name: part for name, part, _ in last.scores.columns}
        for item in self._asked_scores:
            if item.pre_score is not None:
                status = item.pre_score.pre_score(state, pod, nodes, last.feasible)
                check_answer(item.plugin.name, "PreScore", status, Status)
                skips = status.code is Code.SKIP
                if skips and item.plugin.name not in before:
                    continue
                if skips or item.plugin.name not in before:
                    return False
            part = item.plugin.score(state, pod, nodes, last.rows)
            if not isinstance(part, int) or part != before.get(item.plugin.name):
                return False
        return True

    def _renew(self, pod: PodView, nodes: NodeTable, last: Last, row: int) -> bool:
        """Brings one changed row up to date; False where it did not take the pod before, or does not now."""
        if not last.feasible[row] or not all(plugin.takes_row(pod, nodes, row) for plugin in self._row_filters):
            return False
        at = row if len(last.rows) == nodes.size else int(np.searchsorted(last.rows, row))
        state = CycleState()
        for name, part, weight in last.scores.columns:
            plugin = self._row_scores.get(name)
            if plugin is None or isinstance(part, int):
                continue
            score = plugin.score_one(state, pod, nodes, row)
            if not isinstance(score, int) or not 0 <= score <= SCORE_MAX:
                raise PluginFault(name, f"answered {score if isinstance(score, int) else shown(score)} for one node")
            difference = (score - int(part[at])) * weight
            part[at] = score
            last.totals[at] += difference
            last.ranks[at] += difference * nodes.size
        return True


def _same(pod: PodView, nodes: NodeTable, last: Last) -> bool:
    """Whether the pod asks for the same, and nothing of what all plugins see has changed. Its labels and namespace are seen
    by those alone who are asked each time.
    """
    return (
        pod.spec is last.pod.spec
        and last.nodes is nodes
        and last.static_version == nodes.static_version
        and len(last.feasible) == nodes.size
        and not nodes.nominated
    )
