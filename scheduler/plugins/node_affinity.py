"""NodeName and NodeAffinity (with nodeSelector): label requirements evaluated over interned label columns."""

from collections.abc import Iterable

import numpy as np

from scheduler.core.framework import (
    SCORE_MAX,
    ClusterEvent,
    CycleState,
    EventKind,
    LooksAt,
    Mask,
    Plugin,
    PreFilterResult,
)
from scheduler.core.status import SKIP, SUCCESS, Code, Status
from scheduler.core.table import ABSENT, I32, I64, Bools, NodeTable
from scheduler.plugins.memo import StaticMemo
from services.model.node import NodeView
from services.model.pod import NodeAffinity as NodeAffinityTerms
from services.model.pod import NodeSelectorTerm, PodSpecView, PodView, Requirement
from services.model.selectors import node_selector_term_matches, requirement_matches

_MISMATCH, _NOT_ADDED = 1, 2
_REASONS = {
    _MISMATCH: "node(s) didn't match Pod's node affinity/selector",
    _NOT_ADDED: "node(s) didn't match scheduler-enforced node affinity",
}


class NodeName(Plugin):
    """Only the node that the pod names."""

    name = "NodeName"
    looks_at = LooksAt.STATIC
    events = frozenset((EventKind.NODE_ADD,))

    def filter(self, _state: CycleState, pod: PodView, nodes: NodeTable) -> Mask | None:
        if not pod.spec.node_name:
            return None
        codes = np.ones(nodes.size, dtype=np.int64)
        row = nodes.rows.get(pod.spec.node_name)
        if row is not None:
            codes[row] = 0
        reason = "node(s) didn't match the requested node name"
        return Mask(codes, lambda _number: (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (reason,)))

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """The named node comes."""
        return event.kind is EventKind.NODE_ADD and event.node is not None and event.node.name == pod.spec.node_name


def requirement_rows(requirement: Requirement, nodes: NodeTable) -> Bools:
    """The rows whose labels hold the requirement."""
    column, values = nodes.label_column(requirement.key)
    match requirement.operator:
        case "In":
            return _among(column, [values[value] for value in requirement.values if value in values])
        case "NotIn":
            return ~_among(column, [values[value] for value in requirement.values if value in values])
        case "Exists":
            return np.not_equal(column, ABSENT)
        case "DoesNotExist":
            return np.equal(column, ABSENT)
    holding = [number for value, number in values.items() if requirement_matches(requirement, {requirement.key: value})]
    return _among(column, holding)


def _among(column: I32, numbers: list[int]) -> Bools:
    if len(numbers) == 1:
        return np.equal(column, numbers[0])
    return np.isin(column, numbers)


def term_rows(term: NodeSelectorTerm, nodes: NodeTable) -> Bools:
    """The rows that match all of a term; none for a term with nothing in it."""
    if not term.match_expressions and not term.match_fields:
        return np.zeros(nodes.size, dtype=np.bool_)
    rows = np.ones(nodes.size, dtype=np.bool_)
    for requirement in term.match_expressions:
        rows &= requirement_rows(requirement, nodes)
    for requirement in term.match_fields:
        named = np.zeros(nodes.size, dtype=np.bool_)
        for value in requirement.values:
            row = nodes.rows.get(value)
            if row is not None:
                named[row] = True
        rows &= named if requirement.operator == "In" else ~named
    return rows


def any_term_rows(terms: Iterable[NodeSelectorTerm], nodes: NodeTable) -> Bools:
    """The rows that match one of the terms at least."""
    rows = np.zeros(nodes.size, dtype=np.bool_)
    for term in terms:
        rows |= term_rows(term, nodes)
    return rows


def affinity_rows(pod: PodView, nodes: NodeTable) -> Bools:
    """The rows that match the pod's nodeSelector and required node affinity."""
    rows = np.ones(nodes.size, dtype=np.bool_)
    for key, value in pod.spec.node_selector.items():
        rows &= requirement_rows(Requirement(key, "In", (value,)), nodes)
    affinity = pod.spec.node_affinity
    if affinity is not None and affinity.required is not None:
        rows &= any_term_rows(affinity.required, nodes)
    return rows


class NodeAffinity(Plugin):
    """Filter by nodeSelector and required terms; score by the weights of preferred terms.

    `added` is what the profile demands and prefers of every pod besides (NodeAffinityArgs.addedAffinity).
    """

    name = "NodeAffinity"
    looks_at = LooksAt.STATIC
    events = frozenset((EventKind.NODE_ADD, EventKind.NODE_LABEL))

    def __init__(self, added: NodeAffinityTerms | None = None) -> None:
        self._added = added
        self._preferred_of_all = added.preferred if added is not None else ()
        self._filters: StaticMemo[I64] = StaticMemo()
        self._scores: StaticMemo[I64] = StaticMemo()

    def pre_filter(self, _state: CycleState, pod: PodView, _nodes: NodeTable) -> PreFilterResult:
        """Skip without requirements; narrow to named nodes when every required term names some."""
        affinity = pod.spec.node_affinity
        if not pod.spec.node_selector and (affinity is None or affinity.required is None):
            demanded = self._added is not None and self._added.required is not None
            return PreFilterResult(SUCCESS if demanded else SKIP)
        if affinity is None or not affinity.required:
            return PreFilterResult(SUCCESS)
        names: set[str] = set()
        for term in affinity.required:
            named = _names_of(term)
            if named is None:
                return PreFilterResult(SUCCESS)
            names |= named
        if not names:
            status = Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, ("pod affinity terms conflict",), self.name)
            return PreFilterResult(status)
        return PreFilterResult(SUCCESS, frozenset(names))

    def filter(self, _state: CycleState, pod: PodView, nodes: NodeTable) -> Mask:
        codes = self._filters.get(_key(pod.spec), nodes, lambda: self._codes(pod, nodes))
        return Mask(codes, lambda number: (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (_REASONS[number],)))

    def _codes(self, pod: PodView, nodes: NodeTable) -> I64:
        codes = np.where(affinity_rows(pod, nodes), 0, _MISMATCH)
        if self._added is not None and self._added.required is not None:
            codes[~any_term_rows(self._added.required, nodes)] = _NOT_ADDED
        return codes

    def pre_score(self, _state: CycleState, pod: PodView, _nodes: NodeTable, _feasible: Bools) -> Status:
        affinity = pod.spec.node_affinity
        return SUCCESS if self._preferred_of_all or (affinity is not None and affinity.preferred) else SKIP

    def score(self, _state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64:
        sums = self._scores.get(_key(pod.spec), nodes, lambda: self._sums(pod, nodes))
        return nodes.take(sums, feasible)

    def _sums(self, pod: PodView, nodes: NodeTable) -> I64:
        sums = np.zeros(nodes.size, dtype=np.int64)
        affinity = pod.spec.node_affinity
        for weight, term in (*self._preferred_of_all, *(affinity.preferred if affinity is not None else ())):
            sums += weight * term_rows(term, nodes)
        return sums

    def normalize(self, _state: CycleState, _pod: PodView, scores: I64) -> I64:
        """100 * n // max; all 0 when nothing matches (DefaultNormalizeScore)."""
        most = int(scores.max())
        return SCORE_MAX * scores // most if most else scores

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """A node that comes or changes its labels, and that the pod now matches."""
        if event.kind not in (EventKind.NODE_ADD, EventKind.NODE_LABEL) or event.node is None:
            return False
        required = self._added.required if self._added is not None else None
        return matches_node(pod, event.node) and (required is None or _matches_any(required, event.node))


def _key(spec: PodSpecView) -> tuple[object, ...]:
    return (spec.node_affinity, *spec.node_selector.items())


def _names_of(term: NodeSelectorTerm) -> set[str] | None:
    """The node names that a term admits by `metadata.name In`; None when it names none."""
    named: set[str] | None = None
    for requirement in term.match_fields:
        if requirement.key == "metadata.name" and requirement.operator == "In":
            values = set(requirement.values)
            named = values if named is None else named & values
    return named


def matches_node(pod: PodView, node: NodeView) -> bool:
    """nodeSelector and required node affinity against one node."""
    if any(node.labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    return _matches_any(affinity.required, node)


def _matches_any(terms: Iterable[NodeSelectorTerm], node: NodeView) -> bool:
    return any(node_selector_term_matches(term, node.labels, node.name) for term in terms)
