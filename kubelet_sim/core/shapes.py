"""A machine shape and what becomes of it: the facts of a Node and of its NodeTopology.

All machines of a shape share their tables; a node adds its name, its devices' uuids and its labels. A kubelet reserves
nothing unless it is told to, so allocatable is capacity here. Every machine with GPUs advertises them twice: whole, as
`nvidia.com/gpu`, and in thousandths, as `orrery.dev/gpu-milli`; the ledger counts the devices themselves.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from services.model.devices import MILLI_WHOLE, Device
from services.model.names import (
    LABEL_GPU_COUNT,
    LABEL_GPU_PRODUCT,
    LABEL_HOSTNAME,
    LABEL_INSTANCE_TYPE,
    LABEL_SIMULATED,
    RESOURCE_CPU,
    RESOURCE_EPHEMERAL_STORAGE,
    RESOURCE_GPU,
    RESOURCE_GPU_MILLI,
    RESOURCE_MEMORY,
    RESOURCE_PODS,
)
from services.model.node import NicView, NumaView, TopologyView

LABEL_ARCH = "kubernetes.io/arch"
LABEL_OS = "kubernetes.io/os"
# As NVIDIA's feature discovery writes it: MiB.
LABEL_GPU_MEMORY = "nvidia.com/gpu.memory"
# The kubelet's default for --max-pods.
PODS_MAX = 110
# Nodes of the openb trace take more: the trace knows no such limit, and it must not be what decides a replay.
PODS_MAX_TRACE = 256
EPHEMERAL_STORAGE_BYTES = 1 << 40
# Below this a trace node is taken for a machine of one socket.
TWO_SOCKETS_MILLI_CPU_MIN = 32_000
INSTANCE_TYPE_TRACE = "openb"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuModel:
    """`product` as the label nvidia.com/gpu.product names it; `nvlinks`: the links that one GPU of it has."""

    product: str
    memory_bytes: int
    nvlinks: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A machine shape. `gpu_numa[i]` is the NUMA node of GPU i; tables as in TopologyView."""

    name: str
    memory_bytes: int
    milli_cpu: int
    numa_nodes: tuple[NumaView, ...]
    gpu: GpuModel | None
    gpu_numa: tuple[int, ...]
    paths: tuple[tuple[str, ...], ...]
    nvlinks: tuple[tuple[int, ...], ...]
    nics: tuple[NicView, ...]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a kubelet registers. Amounts in ledger units: cpu in thousandths, the rest in base units."""

    name: str
    labels: Mapping[str, str]
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Machine:
    node: NodeFacts
    topology: TopologyView


@dataclass(frozen=True, slots=True)
class TraceModel:
    """A GPU model of the openb trace and the shapes that its nodes are cut from, narrowest first."""

    gpu: GpuModel
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    shapes: Mapping[str, Shape]
    trace_models: Mapping[str, TraceModel]


def expand(shape: Shape, node_name: str, *, pods_max: int = PODS_MAX) -> Machine:
    """The machine of that shape and name; the same for the same arguments."""
    labels = {LABEL_INSTANCE_TYPE: shape.name}
    devices: tuple[Device, ...] = ()
    if shape.gpu is not None:
        devices = tuple(
            Device(index, gpu_uuid(node_name, index), shape.gpu.product, shape.gpu.memory_bytes, numa)
            for index, numa in enumerate(shape.gpu_numa)
        )
        labels[LABEL_GPU_PRODUCT] = shape.gpu.product
        labels[LABEL_GPU_COUNT] = str(len(devices))
        labels[LABEL_GPU_MEMORY] = str(shape.gpu.memory_bytes // _MIB)
    labels |= {LABEL_HOSTNAME: node_name, LABEL_ARCH: "amd64", LABEL_OS: "linux", LABEL_SIMULATED: "true"}
    capacity = {
        RESOURCE_CPU: shape.milli_cpu,
        RESOURCE_MEMORY: shape.memory_bytes,
        RESOURCE_EPHEMERAL_STORAGE: EPHEMERAL_STORAGE_BYTES,
        RESOURCE_PODS: pods_max,
    }
    if devices:
        capacity[RESOURCE_GPU] = len(devices)
        capacity[RESOURCE_GPU_MILLI] = MILLI_WHOLE * len(devices)
    amounts = MappingProxyType(dict(sorted(capacity.items())))
    return Machine(
        node=NodeFacts(node_name, MappingProxyType(dict(sorted(labels.items()))), amounts, amounts),
        topology=TopologyView(
            node_name=node_name,
            shape=shape.name,
            numa_nodes=shape.numa_nodes,
            devices=devices,
            paths=shape.paths,
            nvlinks=shape.nvlinks,
            nics=shape.nics,
        ),
    )


def openb_machine(
    catalogue: Catalogue,
    sn: str,
    cpu_milli: int,
    memory_mib: int,
    gpu: int,
    model: str,
    *,
    pods_max: int = PODS_MAX_TRACE,
) -> Machine:
    """The machine of one row of the openb node list.

    Raises:
        ValueError: the model is unknown, or no shape of it has so many GPUs.
    """
    memory_bytes = memory_mib * _MIB
    sockets = 2 if cpu_milli >= TWO_SOCKETS_MILLI_CPU_MIN else 1
    base = Shape(
        name=INSTANCE_TYPE_TRACE,
        memory_bytes=memory_bytes,
        milli_cpu=cpu_milli,
        numa_nodes=_even_numa_nodes(cpu_milli // 1000, memory_bytes, sockets),
        gpu=None,
        gpu_numa=(),
        paths=(),
        nvlinks=(),
        nics=(),
    )
    if gpu == 0:
        return expand(base, sn, pods_max=pods_max)
    known = catalogue.trace_models.get(model)
    if known is None:
        names = ", ".join(sorted(catalogue.trace_models))
        raise ValueError(f"node {sn}: GPU model {model!r} is none of {names}")
    board = next((shape for shape in known.shapes if len(shape.gpu_numa) >= gpu), None)
    if board is None:
        raise ValueError(f"node {sn}: no shape with {model} has {gpu} GPUs")
    first_numa = sorted(set(board.gpu_numa))
    cut = replace(
        base,
        gpu=replace(known.gpu, product=model),
        gpu_numa=tuple(first_numa.index(numa) * sockets // len(first_numa) for numa in board.gpu_numa[:gpu]),
        paths=tuple(row[:gpu] for row in board.paths[:gpu]),
        nvlinks=tuple(row[:gpu] for row in board.nvlinks[:gpu]),
    )
    return expand(cut, sn, pods_max=pods_max)


def gpu_uuid(node_name: str, index: int) -> str:
    """A uuid in NVIDIA's form that follows from the node's name: a machine that is made again has the same GPUs."""
    digest = hashlib.sha256(f"{node_name}/gpu/{index}".encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _even_numa_nodes(cpus: int, memory_bytes: int, sockets: int) -> tuple[NumaView, ...]:
    """CPUs split evenly; hyperthreads are numbered after all cores, as Linux does."""
    if sockets == 1 or cpus % (2 * sockets):
        bounds = [cpus * socket // sockets for socket in range(sockets + 1)]
        lists = [f"{start}-{end - 1}" for start, end in pairwise(bounds)]
    else:
        cores, part = cpus // 2, cpus // 2 // sockets
        lists = [
            f"{socket * part}-{socket * part + part - 1},{cores + socket * part}-{cores + socket * part + part - 1}"
            for socket in range(sockets)
        ]
    return tuple(NumaView(socket, text, memory_bytes // sockets, socket) for socket, text in enumerate(lists))
