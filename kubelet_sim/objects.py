"""Between protobuf and the core: nodes and pods as projections, and the messages that a kubelet sends."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from kubelet_sim.core.pods import ContainerFacts, KubeletPod, PodContainers
from kubelet_sim.core.shapes import NodeFacts
from kubelet_sim.core.status import OWN_CONDITIONS, rfc3339
from protos.orrery.v1 import lease_pb2, node_pb2, pod_pb2
from services.model.names import LABEL_HOSTNAME, NAMESPACE_NODE_LEASE, RESOURCE_CPU, RESOURCE_MEMORY
from services.model.node import NodeView
from services.model.quantity import format_amount, resource_amount
from services.wire.codec import to_json
from services.wire.metadata import DecodeError, read_envelope
from services.wire.node import project_node
from services.wire.pod import PodDecoder

CONTAINERS_MEMO_MAX = 4096
KUBELET_VERSION = "v1.36.0"
# (type, status while all is well, reason, message): the words of a healthy kubelet.
NODE_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PlayedNode:
    """A node of the fleet. `condition_since` holds the last transition of each of our conditions that is as it should be,
    `foreign_conditions` those that others wrote, in JSON form.
    """

    view: NodeView
    address: str
    condition_since: dict[str, int]
    foreign_conditions: tuple[dict[str, Any], ...]


def read_node(value: bytes, resource_version: str) -> PlayedNode:
    """Raises DecodeError."""
    try:
        node = node_pb2.Node.FromString(value)
        view = project_node(node, resource_version)
    except (ProtobufDecodeError, ValueError) as error:
        raise DecodeError(f"node of {len(value)} bytes: {error}") from error
    wanted = {kind: status for kind, status, _, _ in NODE_CONDITIONS}
    conditions = node.status.conditions
    addresses = (address.address for address in node.status.addresses if address.type == "InternalIP")
    return PlayedNode(
        view=view,
        address=next(addresses, ""),
        condition_since={
            item.type: _nanoseconds(item.last_transition_time)
            for item in conditions
            if wanted.get(item.type) == item.status
        },
        foreign_conditions=tuple(to_json(item) for item in conditions if item.type not in wanted),
    )


class PodReader:
    """Projects pods for the core. Remembers the containers of at most CONTAINERS_MEMO_MAX specs, the oldest out first."""

    def __init__(self) -> None:
        self._pods = PodDecoder()
        self._containers: OrderedDict[bytes, PodContainers] = OrderedDict()

    def read(self, value: bytes, resource_version: str) -> KubeletPod:
        """Raises DecodeError."""
        view = self._pods.view(value, resource_version)
        envelope = read_envelope(value)
        try:
            containers = self._containers.get(envelope.spec) or self._read_containers(envelope.spec)
            status = pod_pb2.PodStatus.FromString(envelope.status)
        except (ProtobufDecodeError, ValueError) as error:
            raise DecodeError(f"pod {view.key}: {error}") from error
        scheduled = next((item for item in status.conditions if item.type == "PodScheduled"), None)
        running = [
            item.state.running.started_at for item in status.container_statuses if item.state.HasField("running")
        ]
        return KubeletPod(
            view=view,
            containers=containers,
            scheduled_ns=_nanoseconds(scheduled.last_transition_time) if scheduled is not None else 0,
            acknowledged_ns=_nanoseconds(status.start_time),
            running_ns=min(map(_nanoseconds, running), default=0),
            pod_ip=status.pod_ip,
            grace_seconds=envelope.metadata.deletion_grace_period_seconds,
            foreign_conditions=tuple(to_json(item) for item in status.conditions if item.type not in OWN_CONDITIONS),
        )

    def _read_containers(self, spec_bytes: bytes) -> PodContainers:
        spec = pod_pb2.PodSpec.FromString(spec_bytes)
        containers = PodContainers(
            init=tuple(
                ContainerFacts(item.name, item.image, item.restart_policy == "Always") for item in spec.init_containers
            ),
            main=tuple(ContainerFacts(item.name, item.image) for item in spec.containers),
            qos_class=qos_class(spec),
        )
        self._containers[spec_bytes] = containers
        if len(self._containers) > CONTAINERS_MEMO_MAX:
            self._containers.popitem(last=False)
        return containers


def qos_class(spec: pod_pb2.PodSpec) -> str:
    """Guaranteed: every container has equal limits and requests for cpu and memory; BestEffort: none has either."""
    anything, guaranteed = False, True
    for container in (*spec.init_containers, *spec.containers):
        for name in (RESOURCE_CPU, RESOURCE_MEMORY):
            limit = resource_amount(name, container.resources.limits.get(name, "0"))
            request = resource_amount(name, container.resources.requests.get(name, "0")) or limit
            anything = anything or request > 0 or limit > 0
            guaranteed = guaranteed and 0 < request == limit
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def node_message(facts: NodeFacts, address: str, now_ns: int) -> node_pb2.Node:
    """The Node that a kubelet registers."""
    node = node_pb2.Node(api_version="v1", kind="Node")
    node.metadata.name = facts.name
    for key, text in facts.labels.items():
        node.metadata.labels[key] = text
    status = node.status
    for name, amount in facts.capacity.items():
        status.capacity[name] = format_amount(name, amount)
    for name, amount in facts.allocatable.items():
        status.allocatable[name] = format_amount(name, amount)
    for kind, value, reason, message in NODE_CONDITIONS:
        condition = status.conditions.add(type=kind, status=value, reason=reason, message=message)
        condition.last_heartbeat_time.seconds = now_ns // _SECOND_NS
        condition.last_transition_time.seconds = now_ns // _SECOND_NS
    status.addresses.add(type="InternalIP", address=address)
    status.addresses.add(type="Hostname", address=facts.labels.get(LABEL_HOSTNAME, facts.name))
    info = status.node_info
    info.architecture, info.operating_system = "amd64", "linux"
    info.kubelet_version, info.container_runtime_version = KUBELET_VERSION, "simulated://1"
    info.os_image, info.kernel_version = "simulated", "simulated"
    return node


def heartbeat_status(node: PlayedNode, address: str, now_ns: int) -> dict[str, Any]:
    """The part of a node's status that a kubelet says again and again."""
    now = rfc3339(now_ns)
    conditions = [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": rfc3339(node.condition_since.get(kind, now_ns)),
        }
        for kind, value, reason, message in NODE_CONDITIONS
    ]
    status: dict[str, Any] = {"conditions": [*conditions, *node.foreign_conditions]}
    if not node.address:
        status["addresses"] = [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": node.view.name},
        ]
    return status


def lease_message(node_name: str, node_uid: str, duration_seconds: int, now_ns: int) -> lease_pb2.Lease:
    """The node's heartbeat in kube-node-lease, owned by the Node so that it goes with it."""
    lease = lease_pb2.Lease(api_version="coordination.k8s.io/v1", kind="Lease")
    lease.metadata.name, lease.metadata.namespace = node_name, NAMESPACE_NODE_LEASE
    lease.metadata.owner_references.add(api_version="v1", kind="Node", name=node_name, uid=node_uid)
    lease.spec.holder_identity = node_name
    lease.spec.lease_duration_seconds = duration_seconds
    lease.spec.renew_time.seconds, lease.spec.renew_time.nanos = divmod(now_ns, _SECOND_NS)
    return lease


def _nanoseconds(timestamp: Timestamp) -> int:
    return timestamp.seconds * _SECOND_NS + timestamp.nanos
