"""Would this pod fit on this node now? Kubernetes' rules once more, written plainly and apart from the scheduler's code.

The scheduler filters all nodes at once over NumPy columns; this asks one pod and one node at a time, so that a mistake in
either does not hide in both. Rules: resources with the count of pods, devices, nodeSelector and required nodeAffinity,
taints, unschedulable, host ports. Nothing about preference: only what forbids.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.model.devices import Device, DeviceRequest
from services.model.node import NodeView, Taint
from services.model.pod import HostPort, NodeAffinity, NodeSelectorTerm, PodSpecView, Requirement, Toleration

MILLI_WHOLE = 1000
TAINT_UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
FORBIDDING = ("NoSchedule", "NoExecute")
ANY_IP = "0.0.0.0"  # noqa: S104 (Kubernetes' wildcard)


@dataclass(slots=True)
class Usage:
    """What the pods on one node hold together. Mutable: it is summed pod by pod."""

    pods: int = 0
    resources: dict[str, int] = field(default_factory=dict)
    device_milli: dict[int, int] = field(default_factory=dict)
    host_ports: list[HostPort] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Room:
    """One node as a pending pod meets it."""

    node: NodeView
    devices: tuple[Device, ...]
    usage: Usage
    takes_new_pods: bool


def request_key(spec: PodSpecView) -> object:
    """Pods with equal keys fit on the same nodes."""
    return (
        tuple(sorted(spec.requests.items())),
        spec.devices,
        tuple(sorted(spec.node_selector.items())),
        spec.node_affinity.required if spec.node_affinity else None,
        spec.tolerations,
        spec.host_ports,
    )


def refusal(spec: PodSpecView, room: Room) -> str:
    """Why a pod of this spec cannot be on this node; empty when it fits."""
    node = room.node
    if not room.takes_new_pods:
        return "the node takes no new pods"
    if room.usage.pods + 1 > node.allocatable.get("pods", 0):
        return "too many pods"
    for name, amount in spec.requests.items():
        if amount > 0 and room.usage.resources.get(name, 0) + amount > node.allocatable.get(name, 0):
            return f"not enough {name}"
    if spec.devices is not None and not devices_fit(spec.devices, room):
        return "no such devices are free"
    if node.unschedulable and not any(tolerates(each, TAINT_UNSCHEDULABLE) for each in spec.tolerations):
        return "the node is unschedulable"
    for taint in node.taints:
        if taint.effect in FORBIDDING and not any(tolerates(each, taint) for each in spec.tolerations):
            return f"the taint {taint.key} is not tolerated"
    if any(node.labels.get(key) != value for key, value in spec.node_selector.items()):
        return "nodeSelector does not match"
    if spec.node_affinity is not None and not affinity_matches(spec.node_affinity, node):
        return "nodeAffinity does not match"
    if any(ports_clash(port, used) for port in spec.host_ports for used in room.usage.host_ports):
        return "a host port is taken"
    return ""


def devices_fit(request: DeviceRequest, room: Room) -> bool:
    """Enough healthy devices of a wanted model have the share free, each on its own."""
    able = [
        device
        for device in room.devices
        if device.healthy
        and (not request.models or device.model in request.models)
        and MILLI_WHOLE - room.usage.device_milli.get(device.index, 0) >= request.milli
    ]
    return len(able) >= request.count


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """core/v1 Toleration.ToleratesTaint."""
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.key not in ("", taint.key):
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.operator in ("", "Equal") and toleration.value == taint.value


def affinity_matches(affinity: NodeAffinity, node: NodeView) -> bool:
    """Any of the required terms holds; required without terms holds nowhere."""
    return affinity.required is None or any(term_matches(term, node) for term in affinity.required)


def term_matches(term: NodeSelectorTerm, node: NodeView) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    labels_hold = all(requirement_holds(each, node.labels) for each in term.match_expressions)
    return labels_hold and all(requirement_holds(each, {"metadata.name": node.name}) for each in term.match_fields)


def requirement_holds(requirement: Requirement, values: Mapping[str, str]) -> bool:
    value = values.get(requirement.key)
    if requirement.operator == "DoesNotExist":
        return value is None
    if requirement.operator == "NotIn":
        return value is None or value not in requirement.values
    if value is None:
        return False
    if requirement.operator == "Exists":
        return True
    if requirement.operator == "In":
        return value in requirement.values
    try:
        (bound,) = requirement.values
        return int(value) > int(bound) if requirement.operator == "Gt" else int(value) < int(bound)
    except ValueError:
        return False


def ports_clash(one: HostPort, other: HostPort) -> bool:
    if (one.protocol, one.port) != (other.protocol, other.port):
        return False
    return one.ip == other.ip or ANY_IP in (one.ip, other.ip)


def first_fit(spec: PodSpecView, rooms: Iterable[Room]) -> tuple[str, int]:
    """The first node on which the pod fits ("" for none), and how many were looked at."""
    looked = 0
    for room in rooms:
        looked += 1
        if not refusal(spec, room):
            return room.node.name, looked
    return "", looked
