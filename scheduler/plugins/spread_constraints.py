"""A pod's topology spread constraints with everything filled in: its own, or the built-in ones by its Services."""

from collections import OrderedDict
from dataclasses import dataclass

from scheduler.core.pod_match import PodMatch, merged_keys, selects
from scheduler.core.table import NodeTable
from services.model.names import LABEL_HOSTNAME, LABEL_ZONE
from services.model.pod import PodSpecView, PodView, Requirement, SpreadConstraint

_MEMO_MAX = 1024
# kube-scheduler's System defaulting (1.36): for pods without constraints of their own that a Service selects.
SYSTEM_DEFAULTS = (
    SpreadConstraint(LABEL_HOSTNAME, max_skew=3, hard=False, selector=None),
    SpreadConstraint(LABEL_ZONE, max_skew=5, hard=False, selector=None),
)


@dataclass(frozen=True, slots=True)
class Constraint:
    """One constraint of one pod. `everything`: the selector is {}, which counts no pods that are there."""

    topology_key: str
    max_skew: int
    min_domains: int
    match: PodMatch
    honor_affinity: bool
    honor_taints: bool
    matches_itself: bool

    @property
    def everything(self) -> bool:
        return self.match.selector == ()


@dataclass(frozen=True, slots=True)
class Constraints:
    """`built_in`: not the pod's own."""

    hard: tuple[Constraint, ...]
    soft: tuple[Constraint, ...]
    built_in: bool


class ConstraintMemo:
    """`defaults`: what pods without constraints get, by the selectors of their Services."""

    def __init__(self, defaults: tuple[SpreadConstraint, ...] = SYSTEM_DEFAULTS) -> None:
        self._defaults = defaults
        self._known: OrderedDict[
            tuple[int, str, tuple[tuple[str, str], ...], int], tuple[PodSpecView, NodeTable, Constraints]
        ] = OrderedDict()

    def get(self, pod: PodView, nodes: NodeTable) -> Constraints:
        key = (
            id(pod.spec),
            pod.namespace,
            tuple(pod.labels.items()),
            -1 if pod.spec.spread else nodes.services_version,
        )
        known = self._known.get(key)
        if known is None or known[1] is not nodes:
            known = self._known[key] = (pod.spec, nodes, self._resolve(pod, nodes))
            if len(self._known) > _MEMO_MAX:
                self._known.popitem(last=False)
        return known[2]

    def _resolve(self, pod: PodView, nodes: NodeTable) -> Constraints:
        given, selector = pod.spec.spread, None
        if not given:
            selector = service_selector(pod, nodes)
            given = self._defaults if selector else ()
        made = [(item.hard, _constraint(item, pod, selector)) for item in given]
        return Constraints(
            tuple(item for hard, item in made if hard),
            tuple(item for hard, item in made if not hard),
            built_in=not pod.spec.spread,
        )


def _constraint(item: SpreadConstraint, pod: PodView, selector: tuple[Requirement, ...] | None) -> Constraint:
    wanted = item.selector if selector is None else selector
    wanted = merged_keys(wanted, pod.labels, item.match_label_keys, ())
    return Constraint(
        item.topology_key,
        item.max_skew,
        item.min_domains,
        PodMatch(frozenset((pod.namespace,)), wanted),
        item.honor_affinity,
        item.honor_taints,
        matches_itself=selects(wanted, pod.labels),
    )


def service_selector(pod: PodView, nodes: NodeTable) -> tuple[Requirement, ...]:
    """All that the Services ask which select the pod (kube-scheduler's DefaultSelector); () when none does."""
    labels: dict[str, str] = {}
    for service in nodes.services.get(pod.namespace, {}).values():
        if service.selector and all(pod.labels.get(key) == value for key, value in service.selector.items()):
            labels.update(service.selector)
    return tuple(Requirement(key, "In", (value,)) for key, value in sorted(labels.items()))
