"""Which protobuf message is which kind."""

from google.protobuf.message import Message

from protos.orrery.v1 import (
    event_pb2,
    lease_pb2,
    namespace_pb2,
    node_allocation_pb2,
    node_pb2,
    node_topology_pb2,
    pod_group_pb2,
    pod_pb2,
    priority_class_pb2,
    service_pb2,
)
from services.model.kinds import Kind

_MESSAGES: dict[str, type[Message]] = {
    "Pod": pod_pb2.Pod,
    "Node": node_pb2.Node,
    "Namespace": namespace_pb2.Namespace,
    "Service": service_pb2.Service,
    "Event": event_pb2.Event,
    "Lease": lease_pb2.Lease,
    "PriorityClass": priority_class_pb2.PriorityClass,
    "PodGroup": pod_group_pb2.PodGroup,
    "NodeTopology": node_topology_pb2.NodeTopology,
    "NodeAllocation": node_allocation_pb2.NodeAllocation,
}


def message_class(kind: Kind) -> type[Message]:
    """The message that holds a whole object of `kind`."""
    return _MESSAGES[kind.name]
