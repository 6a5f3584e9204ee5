"""Rows of the openb trace as objects of the API: Node and NodeTopology for a machine, Pod for a pod."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from kubelet_sim.core.shapes import INSTANCE_TYPE_TRACE, Machine, openb_machine
from kubelet_sim.fleet import load_catalogue
from protos.orrery.v1.api_pb2 import Operation
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.pod_pb2 import Pod
from services.lab.openb import TraceError, TraceNode, TracePod
from services.model.devices import MILLI_WHOLE
from services.model.names import (
    ANNOTATION_GPU_COUNT,
    ANNOTATION_GPU_MODELS,
    ANNOTATION_TRACEPARENT,
    LABEL_INSTANCE_TYPE,
    RESOURCE_CPU,
    RESOURCE_GPU,
    RESOURCE_GPU_MILLI,
    RESOURCE_MEMORY,
)
from services.model.quantity import format_amount
from services.wire.topology import topology_message

LABEL_PART_OF = "app.kubernetes.io/part-of"
PART_OF = "openb"
TRACE_NODE_SELECTOR: Mapping[str, str] = MappingProxyType({LABEL_INSTANCE_TYPE: INSTANCE_TYPE_TRACE})
_IMAGE = "registry.example/openb/task:1"


def machine(row: TraceNode) -> Machine:
    """Raises TraceError for a GPU model that nobody knows, or more GPUs than a machine of it has."""
    try:
        return openb_machine(load_catalogue(), row.name, row.cpu_milli, row.memory_mib, row.gpus, row.model)
    except ValueError as error:
        raise TraceError(str(error)) from error


def node_message(made: Machine) -> Node:
    """A Node as its kubelet would register it, without conditions: those come with the kubelet that adopts it."""
    node = Node(api_version="v1", kind="Node")
    node.metadata.name = made.node.name
    for name, value in made.node.labels.items():
        node.metadata.labels[name] = value
    node.metadata.labels[LABEL_PART_OF] = PART_OF
    for target, amounts in (
        (node.status.capacity, made.node.capacity),
        (node.status.allocatable, made.node.allocatable),
    ):
        for name, amount in amounts.items():
            target[name] = format_amount(name, amount)
    return node


def node_operations(made: Machine) -> list[Operation]:
    """What creates the machine: its Node and its NodeTopology."""
    topology = topology_message(made.topology)
    return [create("nodes", node_message(made)), create("nodetopologies", topology)]


def pod_message(
    row: TracePod, namespace: str, *, node_selector: Mapping[str, str] = MappingProxyType({}), traceparent: str = ""
) -> Pod:
    """A pod that asks what the row asks, and runs until it is deleted."""
    pod = Pod(api_version="v1", kind="Pod")
    pod.metadata.name = row.name
    pod.metadata.namespace = namespace
    pod.metadata.labels[LABEL_PART_OF] = PART_OF
    annotations: Any = pod.metadata.annotations
    if traceparent:
        annotations[ANNOTATION_TRACEPARENT] = traceparent
    wants = {
        RESOURCE_CPU: format_amount(RESOURCE_CPU, row.cpu_milli),
        RESOURCE_MEMORY: format_amount(RESOURCE_MEMORY, row.memory_mib << 20),
    }
    if row.gpus:
        if row.gpu_milli == MILLI_WHOLE:
            wants[RESOURCE_GPU] = str(row.gpus)
        else:
            wants[RESOURCE_GPU_MILLI] = str(row.gpu_milli_total)
            if row.gpus > 1:
                annotations[ANNOTATION_GPU_COUNT] = str(row.gpus)
        if row.models:
            annotations[ANNOTATION_GPU_MODELS] = "|".join(row.models)
    container = pod.spec.containers.add(name="task", image=_IMAGE)
    for name, amount in wants.items():
        container.resources.requests[name] = amount
        if name not in (RESOURCE_CPU, RESOURCE_MEMORY):
            container.resources.limits[name] = amount
    for name, value in node_selector.items():
        pod.spec.node_selector[name] = value
    pod.spec.restart_policy = "Always"
    return pod


def create(resource: str, message: Message) -> Operation:
    operation = Operation()
    operation.create.resource = resource
    operation.create.value = message.SerializeToString()
    return operation
