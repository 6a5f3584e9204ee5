"""Plugins made from their arguments (kubescheduler.config.k8s.io/v1 *Args, Kubernetes 1.36), with its rules for them.

Each maker is given the arguments as a message, where a default stands for what is not set, and `fail(path, message)`; it
returns the plugin. A plugin without a maker takes no arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from protos.orrery.v1 import scheduler_configuration_pb2 as pb
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

Fail = Callable[[Steps, str], None]
_STRATEGIES = (LEAST_ALLOCATED, MOST_ALLOCATED, RATIO)
SHAPE_SCORE_MAX = 10


def _int(message: Any, field: str, default: int) -> int:
    return int(getattr(message, field)) if message.HasField(field) else default


def _within(fail: Fail, steps: Steps, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        fail(steps, f"{value} is not in the range {low} to {high}")


def default_preemption(args: pb.DefaultPreemptionArgs, fail: Fail) -> Plugin:
    percent = _int(args, "min_candidate_nodes_percentage", CANDIDATES_PERCENT_MIN)
    absolute = _int(args, "min_candidate_nodes_absolute", CANDIDATES_MIN)
    _within(fail, ("minCandidateNodesPercentage",), percent, 0, 100)
    if absolute < 0:
        fail(("minCandidateNodesAbsolute",), f"{absolute} must not be negative")
    if percent == absolute == 0:
        fail(("minCandidateNodesPercentage",), "cannot be zero at the same time as minCandidateNodesAbsolute")
    return DefaultPreemption(percent, absolute)


def inter_pod_affinity(args: pb.InterPodAffinityArgs, fail: Fail) -> Plugin:
    weight = _int(args, "hard_pod_affinity_weight", HARD_POD_AFFINITY_WEIGHT)
    _within(fail, ("hardPodAffinityWeight",), weight, 0, 100)
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
    if added.required is not None and not added.required:
        where = ("addedAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
        fail(where, "must have at least one node selector term")
    return NodeAffinity(added)


def node_resources_fit(args: pb.NodeResourcesFitArgs, fail: Fail) -> Plugin:
    for at, group in enumerate(args.ignored_resource_groups):
        if "/" in group:
            fail(("ignoredResourceGroups", at), f"resource group {group!r} can't contain '/'")
    strategy = args.scoring_strategy
    kind = strategy.type or LEAST_ALLOCATED
    where: Steps = ("scoringStrategy",)
    if kind not in _STRATEGIES:
        fail((*where, "type"), f"{kind!r} is none of {', '.join(_STRATEGIES)}")
    resources = _weighted(strategy.resources, (*where, "resources"), fail)
    shape = _shape(
        strategy.requested_to_capacity_ratio.shape, kind, (*where, "requestedToCapacityRatio", "shape"), fail
    )
    if kind not in _STRATEGIES or (kind == RATIO) != bool(shape):
        return NodeResourcesFit()
    ignored, groups = tuple(args.ignored_resources), tuple(args.ignored_resource_groups)
    return NodeResourcesFit(kind, resources, shape, ignored=ignored, ignored_groups=groups)


def _weighted(resources: Sequence[pb.WeightedResource], where: Steps, fail: Fail) -> dict[str, int]:
    weights: dict[str, int] = {}
    for at, item in enumerate(resources):
        # Kubernetes' default of a weight that is not set, or 0.
        weight = item.weight or 1
        if not item.name:
            fail((*where, at, "name"), "is missing")
        elif item.name in weights:
            fail((*where, at, "name"), f"{item.name!r} stands there twice")
        _within(fail, (*where, at, "weight"), weight, 1, 100)
        weights[item.name] = weight
    return weights or dict(DEFAULT_RESOURCES)


def _shape(
    points: Sequence[pb.UtilizationShapePoint], kind: str, where: Steps, fail: Fail
) -> tuple[tuple[int, int], ...]:
    if kind != RATIO:
        if points:
            fail(where, f"goes with the type {RATIO}, and with it alone; the type is {kind}")
        return ()
    if not points:
        fail(where, "at least one point must be specified")
    for at, point in enumerate(points):
        _within(fail, (*where, at, "utilization"), point.utilization, 0, 100)
        _within(fail, (*where, at, "score"), point.score, 0, SHAPE_SCORE_MAX)
        if at and point.utilization <= points[at - 1].utilization:
            fail((*where, at, "utilization"), "utilization values must be sorted in increasing order")
    return tuple((point.utilization, point.score) for point in points)


def balanced_allocation(args: pb.NodeResourcesBalancedAllocationArgs, fail: Fail) -> Plugin:
    for at, item in enumerate(args.resources):
        if item.weight not in (0, 1):
            fail(("resources", at, "weight"), f"{item.weight} must be 1: the balance knows no weights")
    weights = _weighted(args.resources, ("resources",), lambda _steps, _message: None)
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
    if constraint.when_unsatisfiable not in ("DoNotSchedule", "ScheduleAnyway"):
        fail(
            (*where, "whenUnsatisfiable"), f"{constraint.when_unsatisfiable!r} is none of DoNotSchedule, ScheduleAnyway"
        )
    if constraint.HasField("label_selector"):
        fail((*where, "labelSelector"), "constraint must not define a selector, as they deduced for each pod")


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
ARGUMENTS_WITHOUT_EFFECT: dict[str, type[Message]] = {
    "VolumeBinding": pb.VolumeBindingArgs,
    "DynamicResources": pb.DynamicResourcesArgs,
}
