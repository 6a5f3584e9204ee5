"""Nodes and what hardware they report."""

from typing import Any

from apiserver.core.validation.causes import duplicate, invalid, one_of, required
from apiserver.core.validation.resources import validate_amounts
from services.model.errors import Cause
from services.model.selectors import valid_label_key, valid_label_value

_PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
GPUS_MAX = 1024


def validate_node(node: Any) -> list[Cause]:
    causes = [
        *validate_amounts("status.capacity", node.status.capacity),
        *validate_amounts("status.allocatable", node.status.allocatable),
    ]
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(node.spec.taints):
        path = f"spec.taints[{index}]"
        if not valid_label_key(taint.key):
            causes.append(invalid(f"{path}.key", taint.key, "is not a qualified name"))
        if not valid_label_value(taint.value):
            causes.append(invalid(f"{path}.value", taint.value, "is not a label value"))
        causes += one_of(f"{path}.effect", taint.effect, ("NoSchedule", "PreferNoSchedule", "NoExecute"), empty=False)
        if (taint.key, taint.effect) in seen:
            causes.append(duplicate(path, f"{taint.key}:{taint.effect}"))
        seen.add((taint.key, taint.effect))
    return causes


def validate_topology(topology: Any) -> list[Cause]:
    """GPUs numbered from 0, links between GPUs that are there, NUMA nodes that exist."""
    spec = topology.spec
    causes: list[Cause] = []
    count = len(spec.gpus)
    if count > GPUS_MAX:
        causes.append(invalid("spec.gpus", count, f"a node has at most {GPUS_MAX} GPUs"))
    numa_ids = {numa.id for numa in spec.numa_nodes}
    if len(numa_ids) != len(spec.numa_nodes):
        causes.append(duplicate("spec.numaNodes", "id"))
    for index, gpu in enumerate(spec.gpus):
        path = f"spec.gpus[{index}]"
        if gpu.index != index:
            causes.append(invalid(f"{path}.index", gpu.index, f"GPUs are listed in order: {index} is wanted here"))
        if not gpu.uuid:
            causes.append(required(f"{path}.uuid"))
        if numa_ids and gpu.numa_node not in numa_ids:
            causes.append(invalid(f"{path}.numaNode", gpu.numa_node, "is none of spec.numaNodes"))
        if gpu.memory:
            causes += validate_amounts(path, {"memory": gpu.memory})
    for index, link in enumerate(spec.gpu_links):
        path = f"spec.gpuLinks[{index}]"
        if not 0 <= link.a < link.b < count:
            causes.append(invalid(path, f"{link.a}-{link.b}", f"wants a < b, both below {count}"))
        causes += one_of(f"{path}.path", link.path, _PATHS, empty=False)
        if link.nvlinks < 0:
            causes.append(invalid(f"{path}.nvlinks", link.nvlinks, "must be greater than or equal to 0"))
    for index, nic in enumerate(spec.nics):
        if len(nic.gpu_paths) != count:
            causes.append(invalid(f"spec.nics[{index}].gpuPaths", len(nic.gpu_paths), f"wants one path a GPU: {count}"))
    return causes
