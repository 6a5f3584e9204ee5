"""DefaultPreemption: a pod that fits nowhere may take the place of pods of lower priority.

On each node that was rejected for something that leaves with pods: take all pods of lower priority away, see whether the
pod fits then, and give back as many as fit, those first whose eviction would violate a disruption budget, the most
important first. Of the nodes where that works, the one is chosen whose victims matter least.
"""

from collections.abc import Iterator

import numpy as np

from scheduler.core.framework import CycleState, Plugin, PostFilterResult, WhatIf
from scheduler.core.node_info import NodeInfo
from scheduler.core.status import SUCCESS, Code, Status
from scheduler.core.table import Held, NodeTable
from scheduler.plugins.preemption_choice import Candidate, best, by_budgets, importance
from services.model.pod import PodView

# How many candidates are enough to choose from (minCandidateNodesPercentage, minCandidateNodesAbsolute).
CANDIDATES_PERCENT_MIN = 10
CANDIDATES_MIN = 100
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

    def post_filter(self, _state: CycleState, pod: PodView, nodes: NodeTable, what_if: WhatIf) -> PostFilterResult:
        refusal = not_eligible(pod, nodes, what_if)
        if refusal:
            return PostFilterResult(_no(refusal))
        enough = max(self._absolute, nodes.count * self._percent // 100)
        reasons: dict[str, int] = {}
        found = []
        harmless = False
        for answer in self.search(pod, nodes, what_if):
            if isinstance(answer, Status):
                for reason in answer.reasons:
                    reasons[reason] = reasons.get(reason, 0) + 1
                continue
            found.append(answer)
            harmless = harmless or not answer.violations
            if len(found) >= enough and harmless:
                break
        if not found:
            return PostFilterResult(_no(_nowhere(nodes.count, reasons)), clears=True)
        chosen = best(found)
        return PostFilterResult(SUCCESS, chosen.node_name, chosen.victims)

    def search(self, pod: PodView, nodes: NodeTable, what_if: WhatIf) -> Iterator[Candidate | Status]:
        """Node by node: whom the pod would displace there, or why that would not help."""
        rows = np.flatnonzero(what_if.resolvable())
        if len(rows):
            self._offset %= len(rows)
            rows = np.roll(rows, -self._offset)
        for row in rows.tolist():
            self._offset += 1
            yield displaced(pod, nodes, what_if, row)


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
    return Candidate(info.name, tuple(sorted(victims, key=importance)), violations)


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
