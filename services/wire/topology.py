"""A NodeTopology's bytes to its projection, and back: the pair list of the wire becomes square tables."""

from google.protobuf.message import DecodeError as ProtobufDecodeError

from protos.orrery.v1.node_topology_pb2 import NodeTopology
from services.model.devices import Device
from services.model.node import NicView, NumaView, TopologyView
from services.model.quantity import format_amount, value
from services.wire.metadata import DecodeError


def topology_view(data: bytes) -> TopologyView:
    """The projection of one stored version.

    Raises:
        DecodeError: the bytes are no NodeTopology, or hold what is no quantity.
    """
    try:
        return project_topology(NodeTopology.FromString(data))
    except (ProtobufDecodeError, ValueError) as error:
        raise DecodeError(f"node topology of {len(data)} bytes: {error}") from error


def project_topology(topology: NodeTopology) -> TopologyView:
    """Projects a parsed topology. Pairs that the message does not list have no link and the path SYS; pairs that name no
    GPU of the message are left out. Raises QuantityError.
    """
    spec = topology.spec
    count = len(spec.gpus)
    paths = [["X" if a == b else "SYS" for b in range(count)] for a in range(count)]
    links = [[0] * count for _ in range(count)]
    for link in spec.gpu_links:
        if link.a == link.b or not (0 <= link.a < count and 0 <= link.b < count):
            continue
        for a, b in ((link.a, link.b), (link.b, link.a)):
            paths[a][b] = link.path or "SYS"
            links[a][b] = link.nvlinks
    return TopologyView(
        node_name=topology.metadata.name,
        shape=spec.shape,
        numa_nodes=tuple(
            NumaView(node.id, node.cpus, value(node.memory) if node.memory else 0, node.socket)
            for node in spec.numa_nodes
        ),
        devices=tuple(
            Device(
                gpu.index, gpu.uuid, gpu.model, value(gpu.memory) if gpu.memory else 0, gpu.numa_node, not gpu.unhealthy
            )
            for gpu in spec.gpus
        ),
        paths=tuple(map(tuple, paths)),
        nvlinks=tuple(map(tuple, links)),
        nics=tuple(NicView(nic.name, nic.gbps, nic.numa_node, tuple(nic.gpu_paths)) for nic in spec.nics),
    )


def topology_message(view: TopologyView) -> NodeTopology:
    """The other way round, with every pair listed."""
    message = NodeTopology(api_version="orrery.dev/v1", kind="NodeTopology")
    message.metadata.name = view.node_name
    spec = message.spec
    spec.shape = view.shape
    for node in view.numa_nodes:
        numa = spec.numa_nodes.add(id=node.id, cpus=node.cpus, socket=node.socket)
        if node.memory_bytes:
            numa.memory = format_amount("memory", node.memory_bytes)
    for device in view.devices:
        gpu = spec.gpus.add(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            numa_node=device.numa_node,
        )
        if device.memory_bytes:
            gpu.memory = format_amount("memory", device.memory_bytes)
        if not device.healthy:
            gpu.unhealthy = True
    count = len(view.devices)
    for a in range(count):
        for b in range(a + 1, count):
            spec.gpu_links.add(a=a, b=b, path=view.paths[a][b], nvlinks=view.nvlinks[a][b])
    for nic in view.nics:
        spec.nics.add(name=nic.name, gbps=nic.gbps, numa_node=nic.numa_node, gpu_paths=nic.gpu_paths)
    return message
