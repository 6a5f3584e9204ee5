"""`orrery get`: kubectl's columns for each kind, as rows of text. Pure; the API's bytes in, words out.

What STATUS says of a pod and how ages are written follow kubectl 1.36 (pkg/printers/internalversion, apimachinery's
HumanDuration), as far as our kinds have the fields.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

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
from services.model.devices import MILLI_WHOLE

NONE = "<none>"
UNKNOWN = "<unknown>"
_SECONDS = 1_000_000_000
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 365 * 86_400


@dataclass(frozen=True, slots=True)
class Columns:
    """`wide` follow `names` with `-o wide`. `row(object, now_ns)` gives the cells of both."""

    names: tuple[str, ...]
    wide: tuple[str, ...]
    row: Callable[[Any, int], list[str]]


def age(at: Timestamp | None, now_ns: int) -> str:
    """How long ago, as kubectl writes it: 9s, 2m5s, 3h7m, 2d3h, 400d."""
    if at is None or not (at.seconds or at.nanos):
        return UNKNOWN
    return duration_words((now_ns - at.seconds * _SECONDS - at.nanos) // _SECONDS)


def duration_words(seconds: int) -> str:
    """apimachinery's HumanDuration."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(0, seconds)
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    minutes, hours, days, years = seconds // _MINUTE, seconds // _HOUR, seconds // _DAY, seconds // _YEAR
    if minutes < 10:
        return _two(minutes, "m", seconds % _MINUTE, "s")
    if minutes < 3 * 60:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 8 * 24:
        return _two(days, "d", hours % 24, "h")
    if hours < 2 * 365 * 24:
        return f"{days}d"
    if hours < 8 * 365 * 24:
        return _two(years, "y", days % 365, "d")
    return f"{years}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}" if small == 0 else f"{large}{large_unit}{small}{small_unit}"


def _created(message: Any, now_ns: int) -> str:
    metadata = message.metadata
    return age(metadata.creation_timestamp if metadata.HasField("creation_timestamp") else None, now_ns)


def pod_status(pod: pod_pb2.Pod) -> str:
    """What kubectl shows under STATUS."""
    reason = pod.status.reason or pod.status.phase or "Pending"
    if any(item.type == "PodScheduled" and item.reason == "SchedulingGated" for item in pod.status.conditions):
        reason = "SchedulingGated"
    running = False
    for status in pod.status.container_statuses:
        state = status.state
        if state.waiting.reason:
            reason = state.waiting.reason
        elif state.HasField("terminated"):
            ended = state.terminated
            reason = ended.reason or (f"Signal:{ended.signal}" if ended.signal else f"ExitCode:{ended.exit_code}")
        elif status.ready and state.HasField("running"):
            running = True
    if reason == "Completed" and running:
        reason = "Running"
    if pod.metadata.HasField("deletion_timestamp"):
        return "Unknown" if pod.status.reason == "NodeLost" else "Terminating"
    return reason


def gpus_words(pod: pod_pb2.Pod) -> str:
    """The devices that a pod holds: "0-7", "2", "1 (470m)"."""
    shares = pod.placed.devices
    if not shares:
        return NONE
    whole = sorted(share.index for share in shares if share.milli >= MILLI_WHOLE)
    parts = [f"{share.index} ({share.milli}m)" for share in shares if share.milli < MILLI_WHOLE]
    return ",".join([*_ranges(whole), *parts])


def _ranges(numbers: Sequence[int]) -> list[str]:
    words: list[str] = []
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            first, last = numbers[start], numbers[at - 1]
            words.append(str(first) if first == last else f"{first}-{last}")
            start = at
    return words


def _pod(pod: pod_pb2.Pod, now_ns: int) -> list[str]:
    statuses = pod.status.container_statuses
    ready = sum(status.ready for status in statuses)
    restarts = sum(status.restart_count for status in statuses)
    return [
        pod.metadata.name,
        f"{ready}/{len(pod.spec.containers)}",
        pod_status(pod),
        str(restarts),
        _created(pod, now_ns),
        pod.status.pod_ip or NONE,
        pod.spec.node_name or NONE,
        gpus_words(pod),
    ]


def _node(node: node_pb2.Node, now_ns: int) -> list[str]:
    ready = next((item.status for item in node.status.conditions if item.type == "Ready"), "Unknown")
    words = {"True": "Ready", "False": "NotReady"}.get(ready, "Unknown")
    if node.spec.unschedulable:
        words += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = sorted(label.removeprefix(prefix) for label in node.metadata.labels if label.startswith(prefix))
    amounts = node.status.allocatable
    return [
        node.metadata.name,
        words,
        ",".join(roles) or NONE,
        _created(node, now_ns),
        node.status.node_info.kubelet_version or UNKNOWN,
        node.metadata.labels.get("node.kubernetes.io/instance-type", NONE),
        amounts.get("cpu", "0"),
        amounts.get("memory", "0"),
        amounts.get("nvidia.com/gpu", "0"),
        node.metadata.labels.get("nvidia.com/gpu.product", NONE),
    ]


def _namespace(namespace: namespace_pb2.Namespace, now_ns: int) -> list[str]:
    return [namespace.metadata.name, namespace.status.phase or "Active", _created(namespace, now_ns)]


def _service(service: service_pb2.Service, now_ns: int) -> list[str]:
    ports = [
        f"{port.port}:{port.node_port}/{port.protocol or 'TCP'}"
        if port.node_port
        else f"{port.port}/{port.protocol or 'TCP'}"
        for port in service.spec.ports
    ]
    selector = ",".join(f"{key}={value}" for key, value in sorted(service.spec.selector.items()))
    return [
        service.metadata.name,
        service.spec.type or "ClusterIP",
        service.spec.cluster_ip or NONE,
        ",".join(service.spec.external_ips) or NONE,
        ",".join(ports) or NONE,
        _created(service, now_ns),
        selector or NONE,
    ]


def _event(event: event_pb2.Event, now_ns: int) -> list[str]:
    last = event.last_timestamp if event.HasField("last_timestamp") else None
    if event.HasField("series"):
        last = event.series.last_observed_time
    if last is None and event.HasField("event_time"):
        last = event.event_time
    involved = event.involved_object
    return [
        age(last, now_ns) if last is not None else _created(event, now_ns),
        event.type or UNKNOWN,
        event.reason,
        f"{involved.kind.lower()}/{involved.name}",
        event.message.strip(),
        event.reporting_component or event.source.component or NONE,
        str(event.series.count if event.HasField("series") else max(1, event.count)),
        event.metadata.name,
    ]


def _lease(lease: lease_pb2.Lease, now_ns: int) -> list[str]:
    spec = lease.spec
    renewed = age(spec.renew_time if spec.HasField("renew_time") else None, now_ns)
    return [
        lease.metadata.name,
        spec.holder_identity or NONE,
        _created(lease, now_ns),
        renewed,
        str(spec.lease_transitions),
    ]


def _priority_class(item: priority_class_pb2.PriorityClass, now_ns: int) -> list[str]:
    return [
        item.metadata.name,
        str(item.value),
        str(item.global_default).lower(),
        _created(item, now_ns),
        item.preemption_policy or "PreemptLowerPriority",
    ]


def _pod_group(group: pod_group_pb2.PodGroup, now_ns: int) -> list[str]:
    return [
        group.metadata.name,
        str(group.spec.scheduling_policy.gang.min_count or NONE),
        _created(group, now_ns),
    ]


def _node_topology(topology: node_topology_pb2.NodeTopology, now_ns: int) -> list[str]:
    spec = topology.spec
    models = sorted({gpu.model for gpu in spec.gpus})
    sick = sum(gpu.unhealthy for gpu in spec.gpus)
    links = max((link.nvlinks for link in spec.gpu_links), default=0)
    return [
        topology.metadata.name,
        spec.shape or NONE,
        f"{len(spec.gpus)}" + (f" ({sick} unhealthy)" if sick else ""),
        ",".join(models) or NONE,
        f"up to {links} a pair" if links else NONE,
        str(len(spec.numa_nodes)),
        str(len(spec.nics)),
        _created(topology, now_ns),
    ]


def _node_allocation(item: node_allocation_pb2.NodeAllocation, _now_ns: int) -> list[str]:
    total, used = item.status.allocatable, item.status.in_use
    milli = sum(device.in_use_milli for device in item.status.devices)
    return [
        item.metadata.name,
        f"{used.get('cpu', '0')}/{total.get('cpu', '0')}",
        f"{used.get('memory', '0')}/{total.get('memory', '0')}",
        f"{milli}m/{len(item.status.devices) * MILLI_WHOLE}m",
        f"{used.get('pods', '0')}/{total.get('pods', '0')}",
        "yes" if item.status.overcommitted else "no",
    ]


COLUMNS: dict[str, Columns] = {
    "Pod": Columns(("NAME", "READY", "STATUS", "RESTARTS", "AGE"), ("IP", "NODE", "GPUS"), _pod),
    "Node": Columns(
        ("NAME", "STATUS", "ROLES", "AGE", "VERSION"), ("SHAPE", "CPU", "MEMORY", "GPUS", "GPU-PRODUCT"), _node
    ),
    "Namespace": Columns(("NAME", "STATUS", "AGE"), (), _namespace),
    "Service": Columns(("NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"), ("SELECTOR",), _service),
    "Event": Columns(("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"), ("SOURCE", "COUNT", "NAME"), _event),
    "Lease": Columns(("NAME", "HOLDER", "AGE"), ("RENEWED", "TRANSITIONS"), _lease),
    "PriorityClass": Columns(("NAME", "VALUE", "GLOBAL-DEFAULT", "AGE", "PREEMPTIONPOLICY"), (), _priority_class),
    "PodGroup": Columns(("NAME", "MIN-COUNT", "AGE"), (), _pod_group),
    "NodeTopology": Columns(("NAME", "SHAPE", "GPUS", "MODEL", "NVLINKS", "NUMA", "NICS", "AGE"), (), _node_topology),
    "NodeAllocation": Columns(("NAME", "CPU", "MEMORY", "GPU", "PODS", "OVERCOMMITTED"), (), _node_allocation),
}


def header(kind: str, *, wide: bool, namespaces: bool) -> list[str]:
    columns = COLUMNS[kind]
    return [*(("NAMESPACE",) if namespaces else ()), *columns.names, *(columns.wide if wide else ())]


def cells(kind: str, message: Message, now_ns: int, *, wide: bool, namespaces: bool) -> list[str]:
    """One row."""
    columns = COLUMNS[kind]
    row = columns.row(message, now_ns)
    shown = row if wide else row[: len(columns.names)]
    metadata = cast("Any", message).metadata
    return [metadata.namespace, *shown] if namespaces else shown


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns three spaces apart, as kubectl prints them."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
