"""A pod's bytes to its projections, and the edits that Bind makes.

Turning a whole pod into dataclasses costs more than everything else that is done with it. So a head is parsed that is
wire-compatible with the pod but leaves the spec and the label entries as bytes, and their projections are memoised by
those bytes (and by the annotations that belong to the device request): the 10,000 identical pods of a Deployment are
projected once, and share one spec and one set of labels.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields, make_dataclass
from types import MappingProxyType
from typing import NamedTuple, cast

from google.protobuf.message import DecodeError as ProtobufDecodeError

from protos.orrery.v1 import pod_pb2
from protos.orrery.v1.envelope_pb2 import LabelEntry, PodHead, PodHeadStatus
from protos.orrery.v1.meta_pb2 import ResourceRequirements
from protos.orrery.v1.placement_pb2 import PodPlacement
from services.model.devices import DeviceShare
from services.model.names import (
    ANNOTATION_GPU_COUNT,
    ANNOTATION_GPU_MODELS,
    ANNOTATION_RUN_SECONDS,
    ANNOTATION_TRACEPARENT,
    CONDITION_DISRUPTION_TARGET,
    REASON_PREEMPTION,
    SCHEDULER_NAME_DEFAULT,
)
from services.model.pod import (
    HostPort,
    NodeAffinity,
    NodeSelectorTerm,
    Placement,
    PodSpecView,
    PodView,
    Requirement,
    Toleration,
)
from services.model.pod_requests import (
    ContainerRequests,
    PodResources,
    device_request,
    nonzero_requests,
    pod_requests,
    resized,
    scoring_requests,
)
from services.model.quantity import resource_amounts
from services.wire.conditions import set_condition
from services.wire.metadata import DecodeError
from services.wire.pod_terms import pod_affinity, spread_constraint

SPEC_MEMO_MAX = 4096
LABELS_MEMO_MAX = 4096
# One pod's placement is read again with each of its versions, and differs from other pods'.
PLACED_MEMO_MAX = 16_384
# A frozen dataclass sets each field through object.__setattr__: 2.1 us for a PodView. The same slots, filled by a class
# that is not frozen and then handed to the frozen one, take 0.4 us.
_Draft = make_dataclass("_Draft", [(field.name, field.type) for field in fields(PodView)], slots=True)


_Texts = tuple[tuple[str, str], ...]


class Resize(NamedTuple):
    """`containers`: (name, actual, allocated) of each whose status reports resources, as quantities."""

    containers: tuple[tuple[str, _Texts, _Texts], ...]
    infeasible: bool


_SpecKey = tuple[bytes, str, str, Resize | None]


class PodDecoder:
    """Projects pods. Remembers at most SPEC_MEMO_MAX specs, LABELS_MEMO_MAX sets of labels and PLACED_MEMO_MAX placements,
    the oldest out first.
    """

    def __init__(self) -> None:
        self._specs: OrderedDict[_SpecKey, PodSpecView] = OrderedDict()
        self._labels: OrderedDict[tuple[bytes, ...], Mapping[str, str]] = OrderedDict()
        self._placed: OrderedDict[bytes, Placement] = OrderedDict()

    def view(self, value: bytes, resource_version: str) -> PodView:
        """The projection of one stored version.

        Raises:
            DecodeError: the bytes are no pod, or carry a quantity or device wish that validation would have refused.
        """
        try:
            head = PodHead.FromString(value)
            metadata = head.metadata
            entries = tuple(metadata.labels)
            labels = self._labels.get(entries)
            if labels is None:
                labels = self._read_labels(entries)
            placed_bytes = head.placed
            placed = self._placed.get(placed_bytes) if placed_bytes else None
            if placed is None and placed_bytes:
                placed = self._read_placed(placed_bytes)
        except ProtobufDecodeError as error:
            raise DecodeError(f"{len(value)} bytes are not a pod: {error}") from error
        annotations = metadata.annotations
        created, status = metadata.creation_timestamp, head.status
        count = models = traceparent = run_seconds = ""
        if annotations:
            traceparent = annotations.get(ANNOTATION_TRACEPARENT, "")
            if len(annotations) > 1 or not traceparent:
                count = annotations.get(ANNOTATION_GPU_COUNT, "")
                models = annotations.get(ANNOTATION_GPU_MODELS, "")
                run_seconds = annotations.get(ANNOTATION_RUN_SECONDS, "")
        spec_bytes = head.spec
        running = status.container_statuses or status.init_container_statuses
        key = (spec_bytes, count, models, _resize(status, value) if running else None)
        spec = self._specs.get(key)
        if spec is None:
            spec = self._read_spec(key, f"{metadata.namespace}/{metadata.name}")
        deleting = metadata.HasField("deletion_timestamp")
        view = _Draft(
            metadata.namespace,
            metadata.name,
            metadata.uid,
            resource_version,
            created.seconds * 1_000_000_000 + created.nanos,
            labels,
            spec,
            status.phase,
            deleting,
            status.nominated_node_name,
            placed,
            traceparent,
            parse_seconds(run_seconds) if run_seconds else None,
            status.start_time.seconds * 1_000_000_000 + status.start_time.nanos,
            deleting and _preempted(value),
        )
        view.__class__ = PodView
        return cast("PodView", view)

    def _read_labels(self, entries: tuple[bytes, ...]) -> Mapping[str, str]:
        pairs = (LabelEntry.FromString(entry) for entry in entries)
        labels = MappingProxyType(dict(sorted((pair.key, pair.value) for pair in pairs)))
        self._labels[entries] = labels
        if len(self._labels) > LABELS_MEMO_MAX:
            self._labels.popitem(last=False)
        return labels

    def _read_placed(self, value: bytes) -> Placement:
        placed = placement_view(PodPlacement.FromString(value))
        self._placed[value] = placed
        if len(self._placed) > PLACED_MEMO_MAX:
            self._placed.popitem(last=False)
        return placed

    def _read_spec(self, key: _SpecKey, name: str) -> PodSpecView:
        value, count, models, resize = key
        annotations = {ANNOTATION_GPU_MODELS: models}
        if count:
            annotations[ANNOTATION_GPU_COUNT] = count
        try:
            view = project_spec(pod_pb2.PodSpec.FromString(value), annotations, resize)
        except (ProtobufDecodeError, ValueError) as error:
            raise DecodeError(f"pod {name}: {error}") from error
        self._specs[key] = view
        if len(self._specs) > SPEC_MEMO_MAX:
            self._specs.popitem(last=False)
        return view


def _resize(status: PodHeadStatus, value: bytes) -> Resize | None:
    """What the status says of the containers' resources; None where it reports none. `value`: the whole pod."""
    # Loops, not any(): this runs for every version of every running pod.
    for container in status.container_statuses:
        if container.HasField("resources"):
            return _read_resize(value)
    for container in status.init_container_statuses:
        if container.HasField("resources"):
            return _read_resize(value)
    return None


def _read_resize(value: bytes) -> Resize:
    try:
        whole = pod_pb2.Pod.FromString(value).status
    except ProtobufDecodeError as error:
        raise DecodeError(f"{len(value)} bytes are not a pod: {error}") from error
    return Resize(
        tuple(
            (
                container.name,
                tuple(sorted(container.resources.requests.items())),
                tuple(sorted(container.allocated_resources.items())),
            )
            for container in (*whole.container_statuses, *whole.init_container_statuses)
            if container.HasField("resources")
        ),
        any(item.type == "PodResizePending" and item.reason == "Infeasible" for item in whole.conditions),
    )


def _preempted(value: bytes) -> bool:
    """Whether a pod that is being deleted goes for another's sake."""
    try:
        conditions = pod_pb2.Pod.FromString(value).status.conditions
    except ProtobufDecodeError as error:
        raise DecodeError(f"{len(value)} bytes are not a pod: {error}") from error
    return any(
        item.type == CONDITION_DISRUPTION_TARGET and item.status == "True" and item.reason == REASON_PREEMPTION
        for item in conditions
    )


def parse_seconds(text: str) -> float | None:
    """Seconds of an annotation; None when absent or no positive finite number."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def project_spec(spec: pod_pb2.PodSpec, annotations: Mapping[str, str], resize: Resize | None = None) -> PodSpecView:
    """Projects a pod's spec. Raises ValueError for a quantity or device wish that makes no sense."""
    resources = pod_resources(spec, resize)
    requests = pod_requests(resources)
    nonzero_cpu, nonzero_memory = nonzero_requests(resources)
    scoring_cpu, scoring_memory = scoring_requests(resources)
    return PodSpecView(
        requests=MappingProxyType(requests),
        nonzero_milli_cpu=nonzero_cpu,
        nonzero_memory=nonzero_memory,
        devices=device_request(requests, annotations),
        node_name=spec.node_name,
        scheduler_name=spec.scheduler_name or SCHEDULER_NAME_DEFAULT,
        priority=spec.priority,
        preemption_policy=spec.preemption_policy or "PreemptLowerPriority",
        restart_policy=spec.restart_policy or "Always",
        node_selector=MappingProxyType(dict(sorted(spec.node_selector.items()))),
        node_affinity=_node_affinity(spec),
        tolerations=tuple(_toleration(toleration) for toleration in spec.tolerations),
        host_ports=_host_ports(spec),
        scheduling_gates=tuple(gate.name for gate in spec.scheduling_gates),
        images=tuple(container.image for container in (*spec.init_containers, *spec.containers)),
        termination_grace_period_seconds=(
            spec.termination_grace_period_seconds if spec.HasField("termination_grace_period_seconds") else 30
        ),
        containers=tuple(container.name for container in spec.containers),
        scoring_milli_cpu=scoring_cpu,
        scoring_memory=scoring_memory,
        pod_affinity=pod_affinity(spec),
        spread=tuple(spread_constraint(item) for item in spec.topology_spread_constraints),
    )


def pod_resources(spec: pod_pb2.PodSpec, resize: Resize | None = None) -> PodResources:
    """What the request arithmetic reads of a spec. Raises QuantityError."""
    reported = {name: (actual, allocated) for name, actual, allocated in resize.containers} if resize else {}

    def counted(container: pod_pb2.Container, *, sidecar: bool, stays: bool) -> ContainerRequests:
        requests = _requests(container.resources)
        if resize is not None and stays and container.name in reported:
            actual, allocated = (resource_amounts(texts) for texts in reported[container.name])
            requests = resized(requests, actual, allocated, infeasible=resize.infeasible)
        return ContainerRequests(requests, sidecar)

    sidecars = [container.restart_policy == "Always" for container in spec.init_containers]
    return PodResources(
        containers=tuple(counted(container, sidecar=False, stays=True) for container in spec.containers),
        init_containers=tuple(
            counted(container, sidecar=sidecar, stays=sidecar)
            for container, sidecar in zip(spec.init_containers, sidecars, strict=True)
        ),
        overhead=resource_amounts(spec.overhead.items()),
        pod_level=resource_amounts(spec.resources.requests.items()),
        pod_level_limits=resource_amounts(spec.resources.limits.items()),
    )


def _requests(resources: ResourceRequirements) -> dict[str, int]:
    """Requests in ledger units; a limit stands in where its request is absent."""
    return {**resource_amounts(resources.limits.items()), **resource_amounts(resources.requests.items())}


def _node_affinity(spec: pod_pb2.PodSpec) -> NodeAffinity | None:
    if not (spec.HasField("affinity") and spec.affinity.HasField("node_affinity")):
        return None
    return node_affinity_view(spec.affinity.node_affinity)


def node_affinity_view(affinity: pod_pb2.NodeAffinity) -> NodeAffinity:
    """The projection of core/v1 NodeAffinity."""
    required = None
    if affinity.HasField("required_during_scheduling_ignored_during_execution"):
        terms = affinity.required_during_scheduling_ignored_during_execution.node_selector_terms
        required = tuple(_term(term) for term in terms)
    preferred = tuple(
        (preference.weight, _term(preference.preference))
        for preference in affinity.preferred_during_scheduling_ignored_during_execution
    )
    return NodeAffinity(required, preferred)


def _term(term: pod_pb2.NodeSelectorTerm) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        tuple(Requirement(item.key, item.operator, tuple(item.values)) for item in term.match_expressions),
        tuple(Requirement(item.key, item.operator, tuple(item.values)) for item in term.match_fields),
    )


def _toleration(toleration: pod_pb2.Toleration) -> Toleration:
    seconds = toleration.toleration_seconds if toleration.HasField("toleration_seconds") else None
    return Toleration(toleration.key, toleration.operator, toleration.value, toleration.effect, seconds)


def _host_ports(spec: pod_pb2.PodSpec) -> tuple[HostPort, ...]:
    """Host ports of containers and sidecars, as the scheduler counts them; plain init containers hold none."""
    sidecars = [container for container in spec.init_containers if container.restart_policy == "Always"]
    ports = {
        HostPort(port.protocol or "TCP", port.host_ip or "0.0.0.0", port.host_port): None  # noqa: S104 - Kubernetes' wildcard
        for container in (*sidecars, *spec.containers)
        for port in container.ports
        if port.host_port > 0
    }
    return tuple(ports)


def placement_view(placed: PodPlacement) -> Placement:
    """The pod's `placed` record as plain data."""
    return Placement(
        node_name=placed.node_name,
        node_uid=placed.node_uid,
        resources=dict(sorted(placed.resources.items())),
        devices=tuple(DeviceShare(share.index, share.milli) for share in placed.devices),
        fencing_token=placed.fencing_token,
    )


def placement_message(placement: Placement) -> PodPlacement:
    """The other way round."""
    message = PodPlacement(
        node_name=placement.node_name, node_uid=placement.node_uid, fencing_token=placement.fencing_token
    )
    for name, amount in sorted(placement.resources.items()):
        message.resources[name] = amount
    for share in placement.devices:
        message.devices.add(index=share.index, milli=share.milli)
    return message


def bind_pod(value: bytes, placement: Placement, now_ns: int) -> bytes:
    """The pod's bytes after it is bound: spec.nodeName, `placed`, condition PodScheduled=True; all else as it was.

    Raises:
        DecodeError: the bytes are no pod.
    """
    try:
        pod = pod_pb2.Pod.FromString(value)
    except ProtobufDecodeError as error:
        raise DecodeError(f"{len(value)} bytes are not a pod: {error}") from error
    pod.spec.node_name = placement.node_name
    pod.placed.CopyFrom(placement_message(placement))
    set_condition(pod, "PodScheduled", "True", now_ns)
    return pod.SerializeToString(deterministic=True)
