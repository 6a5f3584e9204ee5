"""What a pod's spec says of other pods: affinity, anti-affinity and topology spread, to plain data."""

from collections.abc import Iterable

from protos.orrery.v1 import pod_pb2
from protos.orrery.v1.meta_pb2 import LabelSelector
from services.model.pod import (
    LabelRequirements,
    PodAffinity,
    PodAffinityTerm,
    Requirement,
    SpreadConstraint,
    WeightedTerms,
)


def label_requirements(selector: LabelSelector) -> LabelRequirements:
    """A selector's requirements; matchLabels are In with one value (apimachinery LabelSelectorAsSelector)."""
    labels = tuple(Requirement(key, "In", (value,)) for key, value in sorted(selector.match_labels.items()))
    return labels + tuple(
        Requirement(item.key, item.operator, tuple(item.values)) for item in selector.match_expressions
    )


def pod_affinity(spec: pod_pb2.PodSpec) -> PodAffinity | None:
    """podAffinity and podAntiAffinity; None where the pod has neither."""
    if not spec.HasField("affinity"):
        return None
    affinity, anti = spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity
    terms = PodAffinity(
        tuple(_term(term) for term in affinity.required_during_scheduling_ignored_during_execution),
        tuple(_term(term) for term in anti.required_during_scheduling_ignored_during_execution),
        _weighted(affinity.preferred_during_scheduling_ignored_during_execution),
        _weighted(anti.preferred_during_scheduling_ignored_during_execution),
    )
    return terms if terms != PodAffinity() else None


def _weighted(terms: Iterable[pod_pb2.WeightedPodAffinityTerm]) -> WeightedTerms:
    return tuple((item.weight, _term(item.pod_affinity_term)) for item in terms)


def _term(term: pod_pb2.PodAffinityTerm) -> PodAffinityTerm:
    return PodAffinityTerm(
        selector=label_requirements(term.label_selector) if term.HasField("label_selector") else None,
        topology_key=term.topology_key,
        namespaces=frozenset(term.namespaces),
        namespace_selector=label_requirements(term.namespace_selector) if term.HasField("namespace_selector") else None,
        match_label_keys=tuple(term.match_label_keys),
        mismatch_label_keys=tuple(term.mismatch_label_keys),
    )


def spread_constraint(constraint: pod_pb2.TopologySpreadConstraint) -> SpreadConstraint:
    """One topology spread constraint, with the API's defaults."""
    return SpreadConstraint(
        topology_key=constraint.topology_key,
        max_skew=constraint.max_skew,
        hard=constraint.when_unsatisfiable != "ScheduleAnyway",
        selector=label_requirements(constraint.label_selector) if constraint.HasField("label_selector") else None,
        min_domains=constraint.min_domains if constraint.HasField("min_domains") else 1,
        honor_affinity=constraint.node_affinity_policy != "Ignore",
        honor_taints=constraint.node_taints_policy == "Honor",
        match_label_keys=tuple(constraint.match_label_keys),
    )
