"""NodePorts: no two pods of a node share a host port."""

from collections.abc import Collection

import numpy as np

from scheduler.core.framework import ClusterEvent, CycleState, EventKind, LooksAt, Mask, Plugin, PreFilterResult
from scheduler.core.node_info import NodeInfo
from scheduler.core.status import SKIP, SUCCESS, Code, Status
from scheduler.core.table import NodeTable
from services.model.pod import HostPort, PodView

_WILDCARD = "0.0.0.0"  # noqa: S104 - Kubernetes' word for every address
_REASON = "node(s) didn't have free ports for the requested pod ports"


def clashes(wanted: HostPort, used_ips: Collection[str]) -> bool:
    """Whether an address in use stands in the way; the wildcard clashes with every address."""
    return bool(used_ips) and (wanted.ip == _WILDCARD or wanted.ip in used_ips or _WILDCARD in used_ips)


class NodePorts(Plugin):
    name = "NodePorts"
    looks_at = LooksAt.NODE
    events = frozenset((EventKind.NODE_ADD, EventKind.POD_REMOVED))

    def pre_filter(self, _state: CycleState, pod: PodView, _nodes: NodeTable) -> PreFilterResult:
        return PreFilterResult(SUCCESS if pod.spec.host_ports else SKIP)

    def filter(self, _state: CycleState, pod: PodView, nodes: NodeTable) -> Mask:
        codes = np.zeros(nodes.size, dtype=np.int64)
        for wanted in pod.spec.host_ports:
            for row, ips in nodes.ports.get((wanted.protocol, wanted.port), {}).items():
                if clashes(wanted, ips):
                    codes[row] = 1
        return Mask(codes, lambda _number: (Code.UNSCHEDULABLE, (_REASON,)))

    def filter_one(self, _state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        if any(clashes(wanted, node.used_ips(wanted)) for wanted in pod.spec.host_ports):
            return Status(Code.UNSCHEDULABLE, (_REASON,), self.name)
        return SUCCESS

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """A node that comes, or a pod that leaves one of the wanted ports."""
        if event.kind is EventKind.NODE_ADD:
            return True
        if event.kind is not EventKind.POD_REMOVED or event.pod is None:
            return False
        left = {(port.protocol, port.port) for port in event.pod.spec.host_ports}
        return any((port.protocol, port.port) in left for port in pod.spec.host_ports)
