"""Projections of a node and of its hardware."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.model.devices import Device


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Image:
    """A container image on a node, under all of its names."""

    names: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """What scheduling reads of a Node. `allocatable` holds cpu in thousandths of a core, the rest in base units; `pods`
    is among them.
    """

    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Mapping[str, int]
    ready: bool
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True)
class NumaView:
    """`cpus` in the kernel's list form ("0-19,40-59"); `memory_bytes` 0 when not reported."""

    id: int
    cpus: str
    memory_bytes: int
    socket: int


@dataclass(frozen=True, slots=True)
class NicView:
    """`gpu_paths`: the PCIe path to each GPU, in GPU order."""

    name: str
    gbps: int
    numa_node: int
    gpu_paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopologyView:
    """A NodeTopology. `paths` and `nvlinks` are square, symmetric tables over GPUs: the PCIe path in the words of
    `nvidia-smi topo -m` ("X" on the diagonal) and the count of bonded NVLinks (0 on the diagonal).
    """

    node_name: str
    shape: str
    numa_nodes: tuple[NumaView, ...]
    devices: tuple[Device, ...]
    paths: tuple[tuple[str, ...], ...]
    nvlinks: tuple[tuple[int, ...], ...]
    nics: tuple[NicView, ...]
