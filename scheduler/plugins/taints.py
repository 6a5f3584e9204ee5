"""TaintToleration and NodeUnschedulable: decided once for each distinct set of taints, looked up for every node."""

import re

import numpy as np

from scheduler.core.framework import SCORE_MAX, ClusterEvent, CycleState, EventKind, LooksAt, Mask, Plugin
from scheduler.core.status import Code
from scheduler.core.table import I64, Bools, NodeTable
from scheduler.plugins.memo import StaticMemo
from services.model.node import Taint
from services.model.pod import PodView, Toleration

_UNSCHEDULABLE_TAINT = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_REJECTING = ("NoSchedule", "NoExecute")
_CANONICAL = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)


def tolerates(toleration: Toleration, taint: Taint, *, comparison_operators: bool = False) -> bool:
    """core/v1 Toleration.ToleratesTaint. `comparison_operators`: Lt and Gt compare integers
    (TaintTolerationComparisonOperators, alpha and off by default in 1.36); else they never match.
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    if toleration.operator in ("Lt", "Gt") and comparison_operators:
        return _compares(toleration, taint.value)
    return toleration.operator == "Exists"


def _compares(toleration: Toleration, value: str) -> bool:
    """Whether the taint's value is less (Lt) or more (Gt) than the toleration's; both are canonical 64-bit integers."""
    if not (_CANONICAL.fullmatch(value) and _CANONICAL.fullmatch(toleration.value)):
        return False
    there, wanted = int(value), int(toleration.value)
    if not all(-(1 << 63) <= number < 1 << 63 for number in (there, wanted)):
        return False
    return there < wanted if toleration.operator == "Lt" else there > wanted


def tolerated(tolerations: tuple[Toleration, ...], taint: Taint, *, comparison_operators: bool = False) -> bool:
    return any(tolerates(item, taint, comparison_operators=comparison_operators) for item in tolerations)


def first_untolerated(pod: PodView, taints: tuple[Taint, ...], *, comparison_operators: bool = False) -> Taint | None:
    """The first NoSchedule or NoExecute taint that keeps the pod away."""
    for taint in taints:
        if taint.effect in _REJECTING and not tolerated(
            pod.spec.tolerations, taint, comparison_operators=comparison_operators
        ):
            return taint
    return None


def tolerated_rows(pod: PodView, nodes: NodeTable, *, comparison_operators: bool = False) -> Bools:
    """The rows whose taints do not keep the pod away."""
    verdicts = [
        first_untolerated(pod, taints, comparison_operators=comparison_operators) is None for taints in nodes.taint_sets
    ]
    return np.array(verdicts, dtype=np.bool_)[nodes.taint_set[: nodes.size]]


class NodeUnschedulable(Plugin):
    """A cordoned node takes only pods that tolerate its taint."""

    name = "NodeUnschedulable"
    looks_at = LooksAt.STATIC
    events = frozenset((EventKind.NODE_ADD, EventKind.NODE_TAINT))

    def __init__(self, *, comparison_operators: bool = False) -> None:
        self._comparison_operators = comparison_operators

    _reason = "node(s) were unschedulable"

    def filter(self, _state: CycleState, pod: PodView, nodes: NodeTable) -> Mask | None:
        if not nodes.cordoned:
            return None
        codes = nodes.unschedulable[: nodes.size].astype(np.int64)
        if tolerated(pod.spec.tolerations, _UNSCHEDULABLE_TAINT, comparison_operators=self._comparison_operators):
            return None
        return Mask(codes, lambda _number: (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (self._reason,)))

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """A node that comes, or that is uncordoned."""
        del pod
        if event.kind is EventKind.NODE_ADD:
            return event.node is not None and not event.node.unschedulable
        return event.kind is EventKind.NODE_TAINT and event.node is not None and not event.node.unschedulable


class TaintToleration(Plugin):
    """Filter by NoSchedule and NoExecute; score by how few PreferNoSchedule taints are not tolerated."""

    name = "TaintToleration"
    looks_at = LooksAt.STATIC
    events = frozenset((EventKind.NODE_ADD, EventKind.NODE_TAINT))

    def __init__(self, *, comparison_operators: bool = False) -> None:
        self._comparison_operators = comparison_operators
        self._filters: StaticMemo[Mask | None] = StaticMemo()
        self._scores: StaticMemo[I64 | None] = StaticMemo()

    def filter(self, _state: CycleState, pod: PodView, nodes: NodeTable) -> Mask | None:
        return self._filters.get(pod.spec.tolerations, nodes, lambda: self._filter(pod, nodes))

    def _filter(self, pod: PodView, nodes: NodeTable) -> Mask | None:
        # The number of a set of taints is that of its verdict: 0 passes, else 1 + the set's own number.
        verdicts = np.array(
            [
                0 if self._first_rejecting(pod, taints) is None else number + 1
                for number, taints in enumerate(nodes.taint_sets)
            ],
            dtype=np.int64,
        )
        sets = list(nodes.taint_sets)

        def explain(number: int) -> tuple[Code, tuple[str, ...]]:
            assert self._first_rejecting(pod, sets[number - 1]) is not None
            return Code.UNSCHEDULABLE_AND_UNRESOLVABLE, ("node(s) had untolerated taint(s)",)

        codes = verdicts[nodes.taint_set[: nodes.size]]
        return Mask(codes, explain) if codes.any() else None

    def _first_rejecting(self, pod: PodView, taints: tuple[Taint, ...]) -> Taint | None:
        return first_untolerated(pod, taints, comparison_operators=self._comparison_operators)

    def score(self, _state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64 | int:
        """The count of PreferNoSchedule taints that are not tolerated, before normalising."""
        counts = self._scores.get(pod.spec.tolerations, nodes, lambda: self._counts(pod, nodes))
        return nodes.take(counts, feasible) if counts is not None else SCORE_MAX

    def _counts(self, pod: PodView, nodes: NodeTable) -> I64 | None:
        """By row; None where there are none at all."""
        compare = self._comparison_operators
        useful = tuple(item for item in pod.spec.tolerations if item.effect in ("", "PreferNoSchedule"))
        by_set = np.array(
            [
                sum(
                    taint.effect == "PreferNoSchedule" and not tolerated(useful, taint, comparison_operators=compare)
                    for taint in taints
                )
                for taints in nodes.taint_sets
            ],
            dtype=np.int64,
        )
        counts = by_set[nodes.taint_set[: nodes.size]]
        return counts if counts.any() else None

    def normalize(self, _state: CycleState, _pod: PodView, scores: I64) -> I64:
        """100 - 100 * n // max; all 100 when nobody has any (DefaultNormalizeScore, reversed)."""
        most = int(scores.max())
        if most == 0:
            return np.full_like(scores, SCORE_MAX)
        return SCORE_MAX - SCORE_MAX * scores // most

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """A node that comes, or whose taints change, and that the pod now tolerates."""
        if event.kind not in (EventKind.NODE_ADD, EventKind.NODE_TAINT) or event.node is None:
            return False
        return self._first_rejecting(pod, event.node.taints) is None
