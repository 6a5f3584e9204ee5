"""A node's bytes to its projection."""

from google.protobuf.message import DecodeError as ProtobufDecodeError

from protos.orrery.v1 import node_pb2
from services.model.node import Image, NodeView, Taint
from services.model.quantity import resource_amount
from services.wire.metadata import DecodeError


def node_view(value: bytes, resource_version: str) -> NodeView:
    """The projection of one stored version.

    Raises:
        DecodeError: the bytes are no node, or its allocatable holds what is no quantity.
    """
    try:
        node = node_pb2.Node.FromString(value)
        return project_node(node, resource_version)
    except (ProtobufDecodeError, ValueError) as error:
        raise DecodeError(f"node of {len(value)} bytes: {error}") from error


def project_node(node: node_pb2.Node, resource_version: str) -> NodeView:
    """Projects a parsed node. Raises QuantityError."""
    return NodeView(
        name=node.metadata.name,
        uid=node.metadata.uid,
        resource_version=resource_version,
        labels=dict(sorted(node.metadata.labels.items())),
        taints=tuple(Taint(taint.key, taint.value, taint.effect) for taint in node.spec.taints),
        unschedulable=node.spec.unschedulable,
        allocatable=allocatable(node),
        ready=any(item.type == "Ready" and item.status == "True" for item in node.status.conditions),
        images=tuple(Image(tuple(image.names), image.size_bytes) for image in node.status.images),
    )


def allocatable(node: node_pb2.Node) -> dict[str, int]:
    """status.allocatable in ledger units; capacity where allocatable is absent. Raises QuantityError."""
    source = node.status.allocatable or node.status.capacity
    return {name: resource_amount(name, text) for name, text in sorted(source.items())}
