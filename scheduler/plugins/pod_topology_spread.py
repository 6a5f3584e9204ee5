"""PodTopologySpread: pods of a kind spread over the domains of a node label, as a demand or as a preference.

The counts come from `PodIndex`, which keeps them as pods come and go; PreFilter and PreScore sum them by domain, and Filter
and Score look the sums up for every node at once. (kube-scheduler 1.36, plugins/podtopologyspread.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scheduler.core.framework import (
    SCORE_MAX,
    ClusterEvent,
    CycleState,
    EventKind,
    Key,
    Mask,
    Plugin,
    PreFilterResult,
)
from scheduler.core.node_info import NodeInfo
from scheduler.core.pod_match import selects
from scheduler.core.status import SKIP, SUCCESS, Code, Status
from scheduler.core.table import I64, Bools, NodeTable
from scheduler.plugins.domains import Domains, domains_of
from scheduler.plugins.memo import StaticMemo
from scheduler.plugins.node_affinity import affinity_rows
from scheduler.plugins.spread_constraints import SYSTEM_DEFAULTS, Constraint, ConstraintMemo
from scheduler.plugins.taints import tolerated_rows
from services.model.names import LABEL_HOSTNAME
from services.model.pod import PodSpecView, PodView, SpreadConstraint

_SKEW, _MISSING = 1, 2
_REASON = "node(s) didn't match pod topology spread constraints"
_VERDICTS = {
    _SKEW: (Code.UNSCHEDULABLE, (_REASON,)),
    _MISSING: (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (f"{_REASON} (missing required label)",)),
}
_NO_DOMAIN = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Static:
    """What does not change while no node does. `domains` and `counted` by constraint; `labelled`: rows with all keys;
    `inhabited`: by constraint and place, whether a row there is counted; `found`: how many places are.
    """

    domains: tuple[Domains, ...]
    labelled: Bools
    counted: tuple[Bools, ...]
    inhabited: tuple[Bools, ...]
    found: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Hard:
    """One demand in one cycle. `by_place`: the pods in each domain. `lowest`, `place_of_lowest`, `second`: the two
    smallest counts, so that a question about one node finds the minimum again. `one_more`: what the question adds there.
    """

    constraint: Constraint
    domains: Domains
    counted: Bools
    by_place: I64
    few_domains: bool
    lowest: int
    place_of_lowest: int
    second: int
    one_more: int = 0


@dataclass(slots=True)
class _Soft:
    """`ignored`: rows that lack a label and score 0. `here`: of those that were scored, which are ignored."""

    constraints: tuple[Constraint, ...]
    weights: tuple[float, ...]
    domains: tuple[Domains, ...]
    counts: tuple[I64, ...]
    ignored: Bools
    here: Bools


_HARD: Key[tuple[_Hard, ...]] = Key("PodTopologySpread.hard")
_SOFT: Key[_Soft] = Key("PodTopologySpread.soft")


class PodTopologySpread(Plugin):
    """`defaults`: the constraints of pods that have none of their own but a Service. `comparison_operators`: tolerations
    may compare numbers (TaintTolerationComparisonOperators, off by default).
    """

    name = "PodTopologySpread"
    events = frozenset(
        (
            EventKind.NODE_ADD,
            EventKind.NODE_REMOVED,
            EventKind.NODE_LABEL,
            EventKind.NODE_TAINT,
            EventKind.POD_ADDED,
            EventKind.POD_UPDATED,
            EventKind.POD_REMOVED,
        )
    )

    def __init__(
        self, defaults: tuple[SpreadConstraint, ...] = SYSTEM_DEFAULTS, *, comparison_operators: bool = False
    ) -> None:
        self._constraints = ConstraintMemo(defaults)
        self._own_defaults = defaults is not SYSTEM_DEFAULTS
        self._comparison_operators = comparison_operators
        self._hard_static: StaticMemo[_Static] = StaticMemo()
        self._soft_static: StaticMemo[_Static] = StaticMemo()

    def _static(self, pod: PodView, nodes: NodeTable, constraints: Sequence[Constraint], *, all_keys: bool) -> _Static:
        domains = tuple(domains_of(nodes, item.topology_key) for item in constraints)
        alive = nodes.alive[: nodes.size]
        labelled = np.logical_and.reduce([alive, *(item.labelled for item in domains)]) if all_keys else alive.copy()
        counted = []
        for item in constraints:
            rows = labelled.copy()
            if item.honor_affinity and (pod.spec.node_selector or pod.spec.node_affinity is not None):
                rows &= affinity_rows(pod, nodes)
            if item.honor_taints:
                rows &= tolerated_rows(pod, nodes, comparison_operators=self._comparison_operators)
            counted.append(rows)
        inhabited = tuple(item.inhabited(rows) for item, rows in zip(domains, counted, strict=True))
        found = tuple(int(np.count_nonzero(item)) for item in inhabited)
        return _Static(domains, labelled, tuple(counted), inhabited, found)

    # Filter.

    def pre_filter(self, state: CycleState, pod: PodView, nodes: NodeTable) -> PreFilterResult:
        constraints = self._constraints.get(pod, nodes).hard
        if not constraints:
            return PreFilterResult(SKIP)
        static = self._hard_static.get(
            _key(pod.spec), nodes, lambda: self._static(pod, nodes, constraints, all_keys=True)
        )
        state.write(_HARD, tuple(_hard(static, at, item, nodes) for at, item in enumerate(constraints)))
        return PreFilterResult(SUCCESS)

    def filter(self, state: CycleState, _pod: PodView, nodes: NodeTable) -> Mask:
        codes = np.zeros(nodes.size, dtype=np.int64)
        # The first constraint that rejects a node says why: so the last one is asked first.
        for hard in state.read(_HARD)[::-1]:
            floor = 0 if hard.few_domains else hard.lowest
            most = hard.constraint.max_skew + floor - int(hard.constraint.matches_itself)
            codes[(hard.by_place > most)[hard.domains.places]] = _SKEW
            codes[~hard.domains.labelled] = _MISSING
        return Mask(codes, lambda number: _VERDICTS[number])

    def filter_one(self, state: CycleState, _pod: PodView, node: NodeInfo) -> Status:
        for hard in state.read(_HARD):
            place = int(hard.domains.places[node.row])
            if not place:
                return Status(*_VERDICTS[_MISSING], self.name)
            count = int(hard.by_place[place]) + hard.one_more
            lowest = hard.lowest
            if hard.one_more:
                others = hard.second if place == hard.place_of_lowest else hard.lowest
                lowest = min(others, count)
            if hard.few_domains:
                lowest = 0
            if count + int(hard.constraint.matches_itself) - lowest > hard.constraint.max_skew:
                return Status(*_VERDICTS[_SKEW], self.name)
        return SUCCESS

    def add_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        self._change(state, pod, other, node, 1)

    def remove_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        self._change(state, pod, other, node, -1)

    @staticmethod
    def _change(state: CycleState, pod: PodView, other: PodView, node: NodeInfo, by: int) -> None:
        """By namespace and selector alone: whether `other` is being deleted is not asked, nor is {} special (1.36)."""
        constraints = state.read(_HARD)
        row = node.row
        if other.namespace != pod.namespace or not all(hard.domains.places[row] for hard in constraints):
            return
        state.write(
            _HARD,
            tuple(
                replace(hard, one_more=hard.one_more + by)
                if hard.counted[row] and selects(hard.constraint.match.selector, other.labels)
                else hard
                for hard in constraints
            ),
        )

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """A pod that is counted comes, goes or changes; or a node does that has the labels, or had them."""
        hard = tuple(item for item in pod.spec.spread if item.hard)
        pods = [item for item in (event.pod, event.old_pod) if item is not None]
        if pods:
            return any(
                other.namespace == pod.namespace and selects(item.selector, other.labels)
                for other in pods
                for item in hard
            )
        if event.kind is EventKind.NODE_TAINT:
            return any(item.honor_taints for item in hard)
        # Node affinity may honour any label.
        if event.kind is EventKind.NODE_LABEL and not any(item.honor_affinity for item in hard):
            assert event.node is not None and event.old is not None
            before, now = event.old.labels, event.node.labels
            return any(before.get(item.topology_key) != now.get(item.topology_key) for item in hard)
        return True

    # Score.

    def pre_score(self, state: CycleState, pod: PodView, nodes: NodeTable, feasible: Bools) -> Status:
        """Weights ln(domains + 2), the domains taken from feasible nodes alone; counts from all nodes that count."""
        resolved = self._constraints.get(pod, nodes)
        if not resolved.soft:
            return SKIP
        all_keys = not resolved.built_in or self._own_defaults
        static = self._soft_static.get(
            _key(pod.spec), nodes, lambda: self._static(pod, nodes, resolved.soft, all_keys=all_keys)
        )
        ignored = ~static.labelled
        scored = feasible & ~ignored
        weights, counts = [], []
        for at, item in enumerate(resolved.soft):
            domains = static.domains[at]
            column = _counts(item, nodes)
            if item.topology_key == LABEL_HOSTNAME:
                weights.append(math.log(int(np.count_nonzero(scored)) + 2))
                counts.append(column)
                continue
            size = np.count_nonzero(np.bincount(domains.places[scored], minlength=domains.count + 1))
            weights.append(math.log(int(size) + 2))
            counts.append(domains.sums(column, static.counted[at])[domains.places])
        state.write(
            _SOFT,
            _Soft(resolved.soft, tuple(weights), static.domains, tuple(counts), ignored, np.zeros(0, dtype=np.bool_)),
        )
        return SUCCESS

    def score(self, state: CycleState, _pod: PodView, _nodes: NodeTable, feasible: I64) -> I64:
        """round(sum of count * weight + maxSkew - 1), before normalising."""
        soft = state.read(_SOFT)
        total: npt.NDArray[np.float64] = np.zeros(len(feasible), dtype=np.float64)
        for at, item in enumerate(soft.constraints):
            part = soft.counts[at][feasible] * soft.weights[at] + float(item.max_skew - 1)
            total += np.where(soft.domains[at].places[feasible] > 0, part, 0.0)
        soft.here = soft.ignored[feasible]
        # Half away from zero, as Go rounds; nothing here is negative.
        return np.floor(total + 0.5).astype(np.int64)

    def normalize(self, state: CycleState, _pod: PodView, scores: I64) -> I64:
        """100 * (max + min - raw) // max over the nodes with all labels; 100 when max is 0; 0 for the others."""
        ignored = state.read(_SOFT).here
        if ignored.all():
            return np.zeros_like(scores)
        known = scores[~ignored]
        low, high = int(known.min()), int(known.max())
        normal = np.full_like(scores, SCORE_MAX) if high == 0 else SCORE_MAX * (high + low - scores) // high
        return np.where(ignored, 0, normal)


def _key(spec: PodSpecView) -> tuple[object, ...]:
    """What the static part depends on."""
    return (spec.spread, spec.tolerations, spec.node_affinity, *spec.node_selector.items())


def _counts(constraint: Constraint, nodes: NodeTable) -> I64:
    if constraint.everything:
        return np.zeros(nodes.size, dtype=np.int64)
    return nodes.pods.count((constraint.match,), with_deleting=False).column(nodes.size)


def _hard(static: _Static, at: int, item: Constraint, nodes: NodeTable) -> _Hard:
    domains, counted, inhabited, found = static.domains[at], static.counted[at], static.inhabited[at], static.found[at]
    by_place = domains.sums(_counts(item, nodes), counted)
    lowest = second = _NO_DOMAIN
    place = 0
    if found:
        known = np.where(inhabited, by_place, _NO_DOMAIN)
        place = int(known.argmin())
        lowest = int(known[place])
        if found > 1:
            known[place] = _NO_DOMAIN
            second = int(known.min())
    few = found < item.min_domains or not found
    return _Hard(item, domains, counted, by_place, few, lowest, place, second)
