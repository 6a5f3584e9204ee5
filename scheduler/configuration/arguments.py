"""Plugins made from their arguments (kubescheduler.config.k8s.io/v1 *Args, Kubernetes 1.36), with its rules for them.

Each maker is given the arguments as a message, where a default stands for what is not set, and `fail(path, message)`; it
returns the plugin. A plugin without a maker takes no arguments.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from protos.orrery.v1 import scheduler_configuration_pb2 as pb
from scheduler.configuration.checks import (
    Fail,
    check_name,
    check_selector_term,
    check_shape,
    check_within,
    duration_seconds,
    weighted_resources,
)
from scheduler.core.framework import Plugin
from scheduler.plugins.default_preemption import CANDIDATES_MIN, CANDIDATES_PERCENT_MIN, DefaultPreemption
from scheduler.plugins.inter_pod_affinity import HARD_POD_AFFINITY_WEIGHT, InterPodAffinity
from scheduler.plugins.node_affinity import NodeAffinity
from scheduler.plugins.node_resources import (
    DEFAULT_RESOURCES,
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    RATIO,
    NodeResourcesBalancedAllocation,
    NodeResourcesFit,
)
from scheduler.plugins.pod_topology_spread import PodTopologySpread
from scheduler.plugins.spread_constraints import SYSTEM_DEFAULTS
from services.wire.field_errors import Steps
from services.wire.pod import node_affinity_view
from services.wire.pod_terms import spread_constraint

_STRATEGIES = (LEAST_ALLOCATED, MOST_ALLOCATED, RATIO)
_POLICIES = ("Honor", "Ignore")


def _int(message: Any, field: str, default: int) -> int:
    return int(getattr(message, field)) if message.HasField(field) else default


def default_preemption(args: pb.DefaultPreemptionArgs, fail: Fail) -> Plugin:
    percent = _int(args, "min_candidate_nodes_percentage", CANDIDATES_PERCENT_MIN)
    absolute = _int(args, "min_candidate_nodes_absolute", CANDIDATES_MIN)
    check_within(fail, ("minCandidateNodesPercentage",), percent, 0, 100)
    if absolute < 0:
        fail(("minCandidateNodesAbsolute",), f"{absolute} must not be negative")
    if percent == absolute == 0:
        fail(("minCandidateNodesPercentage",), "cannot be zero at the same time as minCandidateNodesAbsolute")
    return DefaultPreemption(percent, absolute)


def inter_pod_affinity(args: pb.InterPodAffinityArgs, fail: Fail) -> Plugin:
    weight = _int(args, "hard_pod_affinity_weight", HARD_POD_AFFINITY_WEIGHT)
    check_within(fail, ("hardPodAffinityWeight",), weight, 0, 100)
    return InterPodAffinity(weight, ignore_preferred_of_others=args.ignore_preferred_terms_of_existing_pods)


def node_affinity(args: pb.NodeAffinityArgs, fail: Fail) -> Plugin:
    if not args.HasField("added_affinity"):
        return NodeAffinity()
    added = node_affinity_view(args.added_affinity)
    if added.required is None and not added.preferred:
        fail(
            ("addedAffinity",),
            "must have requiredDuringSchedulingIgnoredDuringExecution or preferredDuringSchedulingIgnoredDuringExecution",
        )
    required: Steps = ("addedAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    if added.required is not None and not added.required:
        fail(required, "must have at least one node selector term")
    message = args.added_affinity
    for at, term in enumerate(message.required_during_scheduling_ignored_during_execution.node_selector_terms):
        check_selector_term(term, (*required, at), fail)
    for at, preference in enumerate(message.preferred_during_scheduling_ignored_during_execution):
        where: Steps = ("addedAffinity", "preferredDuringSchedulingIgnoredDuringExecution", at)
        if preference.weight < 0:
            fail((*where, "weight"), f"{preference.weight} must not be negative")
        check_selector_term(preference.preference, (*where, "preference"), fail)
    return NodeAffinity(added)


def node_resources_fit(args: pb.NodeResourcesFitArgs, fail: Fail) -> Plugin:
    for at, name in enumerate(args.ignored_resources):
        check_name(fail, ("ignoredResources", at), name)
    for at, group in enumerate(args.ignored_resource_groups):
        if "/" in group:
            fail(("ignoredResourceGroups", at), f"resource group {group!r} can't contain '/'")
        else:
            check_name(fail, ("ignoredResourceGroups", at), group)
    strategy = args.scoring_strategy
    kind = strategy.type or LEAST_ALLOCATED
    where: Steps = ("scoringStrategy",)
    if kind not in _STRATEGIES:
        fail((*where, "type"), f"{kind!r} is none of {', '.join(_STRATEGIES)}")
    resources = weighted_resources(strategy.resources, (*where, "resources"), fail) or dict(DEFAULT_RESOURCES)
    shape = _shape(strategy, kind, (*where, "requestedToCapacityRatio", "shape"), fail)
    if kind not in _STRATEGIES or (kind == RATIO) != bool(shape):
        return NodeResourcesFit()
    ignored, groups = tuple(args.ignored_resources), tuple(args.ignored_resource_groups)
    return NodeResourcesFit(kind, resources, shape, ignored=ignored, ignored_groups=groups)


def _shape(strategy: pb.ScoringStrategy, kind: str, where: Steps, fail: Fail) -> tuple[tuple[int, int], ...]:
    points = strategy.requested_to_capacity_ratio.shape
    if kind != RATIO:
        if points:
            fail(where, f"goes with the type {RATIO}, and with it alone; the type is {kind}")
        return ()
    if not points:
        fail(where, "at least one point must be specified")
    check_shape(points, where, fail)
    return tuple((point.utilization, point.score) for point in points)


def balanced_allocation(args: pb.NodeResourcesBalancedAllocationArgs, fail: Fail) -> Plugin:
    for at, item in enumerate(args.resources):
        if item.weight not in (0, 1):
            fail(("resources", at, "weight"), f"{item.weight} must be 1: the balance knows no weights")

    def fail_unless_weight(steps: Steps, message: str) -> None:
        if steps[-1] != "weight":
            fail(steps, message)

    weights = weighted_resources(args.resources, ("resources",), fail_unless_weight) or dict(DEFAULT_RESOURCES)
    return NodeResourcesBalancedAllocation(tuple(weights))


def pod_topology_spread(args: pb.PodTopologySpreadArgs, fail: Fail) -> Plugin:
    kind = args.defaulting_type or "System"
    if kind not in ("System", "List"):
        fail(("defaultingType",), f"{kind!r} is none of System, List")
    if kind == "System":
        if args.default_constraints:
            fail(("defaultConstraints",), "must be empty while defaultingType is System; write defaultingType: List")
        return PodTopologySpread(SYSTEM_DEFAULTS)
    seen: set[tuple[str, str]] = set()
    for at, constraint in enumerate(args.default_constraints):
        _check_constraint(constraint, ("defaultConstraints", at), fail)
        key = (constraint.topology_key, constraint.when_unsatisfiable)
        if key in seen:
            fail(("defaultConstraints", at), f"{key[0]} with {key[1]} stands there twice")
        seen.add(key)
    return PodTopologySpread(tuple(spread_constraint(constraint) for constraint in args.default_constraints))


def _check_constraint(constraint: Any, where: Steps, fail: Fail) -> None:
    if constraint.max_skew <= 0:
        fail((*where, "maxSkew"), f"{constraint.max_skew} must be greater than zero")
    if not constraint.topology_key:
        fail((*where, "topologyKey"), "can not be empty")
    else:
        check_name(fail, (*where, "topologyKey"), constraint.topology_key)
    if constraint.when_unsatisfiable not in ("DoNotSchedule", "ScheduleAnyway"):
        fail(
            (*where, "whenUnsatisfiable"), f"{constraint.when_unsatisfiable!r} is none of DoNotSchedule, ScheduleAnyway"
        )
    if constraint.HasField("label_selector"):
        fail((*where, "labelSelector"), "must not be set: each pod's own services and owners say whom it spreads from")
    if constraint.HasField("min_domains") and constraint.min_domains <= 0:
        fail((*where, "minDomains"), f"{constraint.min_domains} must be greater than zero")
    for field, policy in (
        ("nodeAffinityPolicy", constraint.node_affinity_policy),
        ("nodeTaintsPolicy", constraint.node_taints_policy),
    ):
        if policy and policy not in _POLICIES:
            fail((*where, field), f"{policy!r} is none of {', '.join(_POLICIES)}")


def check_volume_binding(args: pb.VolumeBindingArgs, fail: Fail) -> None:
    if args.bind_timeout_seconds < 0:
        fail(("bindTimeoutSeconds",), f"{args.bind_timeout_seconds} must not be negative")
    check_shape(args.shape, ("shape",), fail)


def check_dynamic_resources(args: pb.DynamicResourcesArgs, fail: Fail) -> None:
    seconds = duration_seconds(args.filter_timeout or "0")
    if seconds is None or seconds < 0:
        fail(("filterTimeout",), f"{args.filter_timeout[:80]!r} is no duration of zero or more, such as 10s")


MAKERS: dict[str, tuple[type[Message], Callable[[Any, Fail], Plugin]]] = {
    "DefaultPreemption": (pb.DefaultPreemptionArgs, default_preemption),
    "InterPodAffinity": (pb.InterPodAffinityArgs, inter_pod_affinity),
    "NodeAffinity": (pb.NodeAffinityArgs, node_affinity),
    "NodeResourcesFit": (pb.NodeResourcesFitArgs, node_resources_fit),
    "NodeResourcesBalancedAllocation": (pb.NodeResourcesBalancedAllocationArgs, balanced_allocation),
    "PodTopologySpread": (pb.PodTopologySpreadArgs, pod_topology_spread),
}
# Default plugins of Kubernetes that have nothing to do here: accepted, so that a file works as it stands.
WITHOUT_EFFECT: dict[str, str] = {
    **dict.fromkeys(
        ("NodeVolumeLimits", "VolumeBinding", "VolumeRestrictions", "VolumeZone"), "Orrery does not model volumes yet"
    ),
    "DynamicResources": "Orrery knows devices through GpuTopology, not through resource claims",
    "NodeDeclaredFeatures": "simulated kubelets declare no features",
}
ARGUMENTS_WITHOUT_EFFECT: dict[str, tuple[type[Message], Callable[[Any, Fail], None]]] = {
    "VolumeBinding": (pb.VolumeBindingArgs, check_volume_binding),
    "DynamicResources": (pb.DynamicResourcesArgs, check_dynamic_resources),
}
# Points at which Kubernetes' plugin stands and ours has nothing to do: accepted, and said.
POINTS_WITHOUT_EFFECT: dict[tuple[str, str], str] = {
    ("NodeResourcesFit", "preFilter"): "it computes at filter what Kubernetes' computes here",
    ("NodeResourcesFit", "preScore"): "it computes at score what Kubernetes' computes here",
    ("TaintToleration", "preScore"): "it computes at score what Kubernetes' computes here",
    ("DefaultPreemption", "preEnqueue"): "a pod that waits for its victims to go is held back by the queue itself",
}
