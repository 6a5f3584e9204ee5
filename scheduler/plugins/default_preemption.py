"""DefaultPreemption: a pod that fits nowhere may take the place of pods of lower priority.

On each node that was rejected for something that leaves with pods: take all pods of lower priority away, see whether the
pod fits then, and give back as many as fit, those first whose eviction would violate a disruption budget, the most
important first. Of the nodes where that works, the one is chosen whose victims matter least.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.core.framework import CycleState, Plugin, PostFilterResult, WhatIf
from scheduler.core.node_info import NodeInfo
from scheduler.core.status import SUCCESS, Code, Status
from scheduler.core.table import Bools, Held, NodeTable
from scheduler.plugins.preemption_choice import Candidate, best, by_budgets, candidate, importance
from scheduler.plugins.preemption_rows import RowPods, RowPodsMemo, search_rows
from services.model.pod import PodView

# How many candidates are enough to choose from (minCandidateNodesPercentage, minCandidateNodesAbsolute).
CANDIDATES_PERCENT_MIN = 10
CANDIDATES_MIN = 100
# So many nodes are looked at together.
_CHUNK = 256
_NOT_HELPFUL = "Preemption is not helpful for scheduling"
_NO_VICTIMS = "No preemption victims found for incoming pod"


class DefaultPreemption(Plugin):
    name = "DefaultPreemption"

    def __init__(
        self, candidates_percent_min: int = CANDIDATES_PERCENT_MIN, candidates_min: int = CANDIDATES_MIN
    ) -> None:
        self._percent = candidates_percent_min
        self._absolute = candidates_min
        # Where the next search begins, so that not always the same nodes pay.
        self._offset = 0
        self._pods = RowPodsMemo()

    def post_filter(self, _state: CycleState, pod: PodView, nodes: NodeTable, what_if: WhatIf) -> PostFilterResult:
        refusal = not_eligible(pod, nodes, what_if)
        if refusal:
            return PostFilterResult(_no(refusal))
        enough = max(self._absolute, nodes.count * self._percent // 100)
        found = self.search(pod, nodes, what_if, enough)
        if not found.candidates:
            return PostFilterResult(_no(_nowhere(nodes.count, found.reasons)), clears=True)
        chosen = best(found.candidates)
        return PostFilterResult(SUCCESS, chosen.node_name, chosen.victims)

    def search(self, pod: PodView, nodes: NodeTable, what_if: WhatIf, enough: int) -> "Search":
        """Looks for `enough` candidates, one of which violates no budget, among the nodes that preemption may help."""
        search = Search([], {})
        rows = np.flatnonzero(what_if.resolvable())
        if not nodes.has_pods_below(pod.spec.priority):
            search.refuse(_NO_VICTIMS, len(rows))
            return search
        plain = what_if.only_resources()
        offset = self._offset % max(1, len(rows))
        for begin in range(0, len(rows), _CHUNK):
            chunk = np.roll(rows, -offset)[begin : begin + _CHUNK]
            self._offset = offset + begin + len(chunk)
            self._search_chunk(pod, nodes, what_if, chunk.tolist(), plain, search)
            if len(search.candidates) >= enough and any(not item.violations for item in search.candidates):
                break
        return search

    def _search_chunk(
        self, pod: PodView, nodes: NodeTable, what_if: WhatIf, rows: list[int], plain: Bools, search: "Search"
    ) -> None:
        priority = pod.spec.priority
        quick: list[int] = []
        quick_pods: list[RowPods] = []
        for row in rows:
            pods = self._pods.get(nodes, row)
            if pods.below(priority) == len(pods.held):
                search.refuse(_NO_VICTIMS, 1)
            elif plain[row]:
                quick.append(row)
                quick_pods.append(pods)
            else:
                search.take(displaced(pod, nodes, what_if, row))
        if quick:
            candidates, helpless = search_rows(pod, nodes, quick, quick_pods)
            search.candidates += candidates
            for row in helpless:
                search.take(displaced(pod, nodes, what_if, row))


@dataclass(slots=True)
class Search:
    """What a search came to: candidates, and on how many of the other nodes which reason stands."""

    candidates: list[Candidate]
    reasons: dict[str, int]

    def refuse(self, reason: str, nodes: int) -> None:
        if nodes:
            self.reasons[reason] = self.reasons.get(reason, 0) + nodes

    def take(self, answer: Candidate | Status) -> None:
        if isinstance(answer, Candidate):
            self.candidates.append(answer)
            return
        for reason in answer.reasons:
            self.refuse(reason, 1)


def not_eligible(pod: PodView, nodes: NodeTable, what_if: WhatIf) -> str:
    """Why the pod may not preempt now; "" when it may.

    Not while somebody on its nominated node is going for its sake, unless that node is no good any more.
    """
    if pod.spec.preemption_policy == "Never":
        return "not eligible due to preemptionPolicy=Never."
    nominated = nodes.nominated_node(pod.uid)
    if nominated and not what_if.unresolvable(nominated):
        for held in nodes.held.get(nominated, {}).values():
            if held.pod.preempted and held.pod.spec.priority < pod.spec.priority:
                return "not eligible due to a terminating pod on the nominated node."
    return ""


def displaced(pod: PodView, nodes: NodeTable, what_if: WhatIf, row: int) -> Candidate | Status:
    """Whom the pod would displace on one node."""
    info, state = NodeInfo(nodes, row), what_if.state.clone()
    priority = pod.spec.priority
    lower = [held for held in nodes.held.get(info.name, {}).values() if held.pod.spec.priority < priority]
    if not lower:
        return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (_NO_VICTIMS,))
    for held in lower:
        what_if.remove(state, info, held)
    status = what_if.fits(state, info)
    if not status.ok:
        return status
    violating, others = by_budgets(sorted(lower, key=importance), nodes.budgets.values())
    victims: list[Held] = []
    violations = 0
    for number, held in enumerate((*violating, *others)):
        what_if.add(state, info, held)
        if not what_if.fits(state, info).ok:
            what_if.remove(state, info, held)
            victims.append(held)
            violations += number < len(violating)
    if not victims:
        # It fits without anybody going: then the next attempt will place it.
        return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (_NO_VICTIMS,))
    return candidate(info.name, tuple(sorted(victims, key=importance)), violations)


def _no(text: str) -> Status:
    return Status(Code.UNSCHEDULABLE, (f"preemption: {text}",))


def _nowhere(nodes: int, reasons: dict[str, int]) -> str:
    """Kubernetes' words: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 ..."""
    asked = sum(reasons.values())
    counts = dict(reasons)
    if nodes > asked:
        counts[_NOT_HELPFUL] = nodes - asked
    texts = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{nodes} nodes are available: {', '.join(texts)}."
