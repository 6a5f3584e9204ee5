"""InterPodAffinity: required and preferred terms about other pods, those of the pod at hand and those of the pods there.

PreFilter sums, for each topology domain, the pods that the pod's terms mean and the anti-affinity terms that mean the pod.
Filter and Score look the sums up for every node at once. The counts come from `PodIndex`, which keeps them as pods come
and go. (kube-scheduler 1.36, plugins/interpodaffinity; where its code reads a negated namespaceSelector otherwise than its
documentation says, this follows the documentation.)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

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
from scheduler.core.pod_index import PodIndex, TermKind
from scheduler.core.pod_match import PodMatch, affinity_match, selects
from scheduler.core.status import SKIP, SUCCESS, Code, Status
from scheduler.core.table import I64, Bools, NodeTable
from scheduler.plugins.domains import Domains, domains_of
from services.model.pod import PodView

HARD_POD_AFFINITY_WEIGHT = 1
_UNMET, _REPELLED, _REPELLED_BY_OTHERS = 1, 2, 3
_VERDICTS: Mapping[int, tuple[Code, tuple[str, ...]]] = {
    _UNMET: (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, ("node(s) didn't match pod affinity rules",)),
    _REPELLED: (Code.UNSCHEDULABLE, ("node(s) didn't match pod anti-affinity rules",)),
    _REPELLED_BY_OTHERS: (Code.UNSCHEDULABLE, ("node(s) didn't satisfy existing pods anti-affinity rules",)),
}
# (whom a term means, its topology key)
Term = tuple[PodMatch, str]


@dataclass(frozen=True, slots=True)
class Sums:
    """How many pods (or terms) there are in each domain of `topology_key`. `one_more`: a question's, at its node."""

    topology_key: str
    domains: Domains
    by_place: I64
    one_more: int = 0

    def here(self) -> I64:
        """By row; 0 where the label is missing."""
        return self.by_place[self.domains.places]

    def at(self, row: int) -> int:
        """At the node of a question."""
        place = int(self.domains.places[row])
        return int(self.by_place[place]) + self.one_more if place else 0


@dataclass(frozen=True, slots=True)
class _Found:
    """What PreFilter found. `met`, `repelled`: sums of each of the pod's own terms; `repelling`: of others' anti-affinity.

    `met_anywhere`: the pods that all affinity terms mean, counted once for each term whose label their node has.
    `first`: the pod means itself, so that it may be the first of its kind.
    """

    affinity: tuple[Term, ...]
    anti: tuple[Term, ...]
    met: tuple[Sums, ...]
    repelled: tuple[Sums, ...]
    repelling: tuple[Sums, ...]
    met_anywhere: int
    first: bool


@dataclass(slots=True)
class _Weights:
    """The sum of the weights on each row, by topology key."""

    by_key: dict[str, I64] = field(default_factory=dict)

    def add(self, key: str, column: I64, factor: int) -> None:
        known = self.by_key.get(key)
        self.by_key[key] = column * factor if known is None else known + column * factor


_FOUND: Key[_Found] = Key("InterPodAffinity.found")
_WEIGHTS: Key[_Weights] = Key("InterPodAffinity.weights")


class InterPodAffinity(Plugin):
    """`hard_weight`: what a required affinity term of a pod there counts in the score (hardPodAffinityWeight, 0-100).

    `ignore_preferred_of_others`: terms of the pods there count only for a pod that has preferred terms itself
    (ignorePreferredTermsOfExistingPods).
    """

    name = "InterPodAffinity"
    events = frozenset(
        (
            EventKind.NODE_ADD,
            EventKind.NODE_REMOVED,
            EventKind.NODE_LABEL,
            EventKind.POD_ADDED,
            EventKind.POD_UPDATED,
            EventKind.POD_REMOVED,
            EventKind.NAMESPACE,
        )
    )

    def __init__(
        self, hard_weight: int = HARD_POD_AFFINITY_WEIGHT, *, ignore_preferred_of_others: bool = False
    ) -> None:
        self._hard_weight = hard_weight
        self._ignore_others = ignore_preferred_of_others

    # Filter.

    def pre_filter(self, state: CycleState, pod: PodView, nodes: NodeTable) -> PreFilterResult:
        index = nodes.pods
        if pod.spec.pod_affinity is None and not len(index.carried[TermKind.ANTI_REQUIRED]):
            return PreFilterResult(SKIP)
        affinity, anti = _own(index, pod, TermKind.REQUIRED), _own(index, pod, TermKind.ANTI_REQUIRED)
        labels = index.namespace_labels(pod.namespace)
        others = index.carried[TermKind.ANTI_REQUIRED].meaning(pod, labels)
        repelling = _carried_sums(((term.topology_key, term.rows.column(nodes.size)) for term in others), nodes)
        if not affinity and not anti and not any(sums.by_place.any() for sums in repelling):
            return PreFilterResult(SKIP)
        met: tuple[Sums, ...] = ()
        if affinity:
            column = index.count(tuple(match for match, _ in affinity), with_deleting=True).column(nodes.size)
            met = tuple(_sums(key, column, nodes) for _, key in affinity)
        repelled = tuple(
            _sums(key, index.count((match,), with_deleting=True).column(nodes.size), nodes) for match, key in anti
        )
        anywhere = sum(int(sums.by_place.sum()) for sums in met)
        first = all(match.holds(pod.namespace, pod.labels, labels) for match, _ in affinity)
        state.write(_FOUND, _Found(affinity, anti, met, repelled, repelling, anywhere, first))
        return PreFilterResult(SUCCESS)

    def filter(self, state: CycleState, _pod: PodView, nodes: NodeTable) -> Mask:
        found = state.read(_FOUND)
        codes = np.zeros(nodes.size, dtype=np.int64)
        for sums in found.repelling:
            codes[sums.here() > 0] = _REPELLED_BY_OTHERS
        for sums in found.repelled:
            codes[sums.here() > 0] = _REPELLED
        if found.met:
            labelled = np.logical_and.reduce([sums.domains.labelled for sums in found.met])
            if found.met_anywhere or not found.first:
                labelled &= np.logical_and.reduce([sums.here() > 0 for sums in found.met])
            codes[~labelled] = _UNMET
        return Mask(codes, lambda number: _VERDICTS[number])

    def filter_one(self, state: CycleState, _pod: PodView, node: NodeInfo) -> Status:
        found, row = state.read(_FOUND), node.row
        if found.met:
            labelled = all(sums.domains.places[row] for sums in found.met)
            first = found.first and not found.met_anywhere
            if not labelled or not (first or all(sums.at(row) > 0 for sums in found.met)):
                return Status(*_VERDICTS[_UNMET], self.name)
        if any(sums.at(row) > 0 for sums in found.repelled):
            return Status(*_VERDICTS[_REPELLED], self.name)
        if any(sums.at(row) > 0 for sums in found.repelling):
            return Status(*_VERDICTS[_REPELLED_BY_OTHERS], self.name)
        return SUCCESS

    def add_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        self._change(state, pod, other, node, 1)

    def remove_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        self._change(state, pod, other, node, -1)

    @staticmethod
    def _change(state: CycleState, pod: PodView, other: PodView, node: NodeInfo, by: int) -> None:
        found, index, nodes, row = state.read(_FOUND), node.nodes.pods, node.nodes, node.row
        labels, own_labels = index.namespace_labels(other.namespace), index.namespace_labels(pod.namespace)

        def means(match: PodMatch) -> bool:
            return match.holds(other.namespace, other.labels, labels)

        if found.affinity and all(means(match) for match, _ in found.affinity):
            labelled = sum(bool(sums.domains.places[row]) for sums in found.met)
            met = tuple(replace(sums, one_more=sums.one_more + by) for sums in found.met)
            found = replace(found, met=met, met_anywhere=found.met_anywhere + by * labelled)
        if found.anti:
            repelled = tuple(
                replace(sums, one_more=sums.one_more + by) if means(match) else sums
                for (match, _), sums in zip(found.anti, found.repelled, strict=True)
            )
            found = replace(found, repelled=repelled)
        if other.spec.pod_affinity is not None:
            repelling = {sums.topology_key: sums for sums in found.repelling}
            for match, key in _own(index, other, TermKind.ANTI_REQUIRED):
                if match.holds(pod.namespace, pod.labels, own_labels):
                    known = repelling.get(key) or _sums(key, np.zeros(nodes.size, dtype=np.int64), nodes)
                    repelling[key] = replace(known, one_more=known.one_more + by)
            found = replace(found, repelling=tuple(repelling.values()))
        state.write(_FOUND, found)

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """A pod comes, changes or goes whom the pod's terms may mean, or whose anti-affinity may mean the pod; or a node or
        a namespace changes.

        Terms that ask for labels of namespaces count as meant whatever these are: a plugin does not see them here. The last
        pod of a kind that goes wakes too: then the pod may be the first.
        """
        pods = [item for item in (event.pod, event.old_pod) if item is not None]
        if not pods:
            return True
        affinity = pod.spec.pod_affinity
        own = (*affinity.required, *affinity.anti_required) if affinity is not None else ()
        if any(_may_mean(affinity_match(term, pod), other) for term in own for other in pods):
            return True
        return event.kind is not EventKind.POD_ADDED and any(
            _may_mean(affinity_match(term, other), pod)
            for other in pods
            if other.spec.pod_affinity is not None
            for term in other.spec.pod_affinity.anti_required
        )

    # Score.

    def pre_score(self, state: CycleState, pod: PodView, nodes: NodeTable, _feasible: Bools) -> Status:
        """Preferred terms of the pod and of the pods there, and the others' required affinity terms."""
        index, weights = nodes.pods, _Weights()
        if pod.spec.pod_affinity is None and not index.scores_newcomers:
            return SKIP
        own = [term for term in index.own_terms(pod) if term[0] is TermKind.PREFERRED]
        if not own and self._ignore_others:
            return SKIP
        for _, match, key, weight in own:
            counts = index.count((match,), with_deleting=True)
            if counts.rows:
                weights.add(key, counts.column(nodes.size), weight)
        labels = index.namespace_labels(pod.namespace)
        for kind, factor in ((TermKind.PREFERRED, 1), (TermKind.REQUIRED, self._hard_weight)):
            for term in index.carried[kind].meaning(pod, labels) if factor else ():
                weights.add(term.topology_key, term.rows.column(nodes.size), factor)
        if not weights.by_key:
            return SKIP
        state.write(_WEIGHTS, weights)
        return SUCCESS

    def score(self, state: CycleState, _pod: PodView, nodes: NodeTable, feasible: I64) -> I64:
        total = np.zeros(len(feasible), dtype=np.int64)
        for key, column in state.read(_WEIGHTS).by_key.items():
            domains = domains_of(nodes, key)
            total += domains.sums(column)[domains.places[feasible]]
        return total

    def normalize(self, _state: CycleState, _pod: PodView, scores: I64) -> I64:
        """int(100 * ((s - min) / (max - min))), divided first as kube-scheduler does; all 0 where all are equal."""
        low, high = int(scores.min()), int(scores.max())
        if low == high:
            return np.zeros_like(scores)
        return (float(SCORE_MAX) * ((scores - low) / float(high - low))).astype(np.int64)


def _may_mean(match: PodMatch, pod: PodView) -> bool:
    """Whether a term means a pod, if the labels of the pod's namespace are right."""
    if pod.namespace not in match.namespaces and match.namespace_selector is None:
        return False
    return selects(match.selector, pod.labels)


def _own(index: PodIndex, pod: PodView, kind: TermKind) -> tuple[Term, ...]:
    if pod.spec.pod_affinity is None:
        return ()
    return tuple((match, key) for term_kind, match, key, _ in index.own_terms(pod) if term_kind is kind)


def _sums(key: str, column: I64, nodes: NodeTable) -> Sums:
    domains = domains_of(nodes, key)
    return Sums(key, domains, domains.sums(column))


def _carried_sums(terms: Iterable[tuple[str, I64]], nodes: NodeTable) -> tuple[Sums, ...]:
    columns: dict[str, I64] = {}
    for key, column in terms:
        columns[key] = columns[key] + column if key in columns else column
    return tuple(_sums(key, column, nodes) for key, column in columns.items())
