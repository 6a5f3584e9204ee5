"""One node as a question sees it: what would be if pods came to it or left it.

The table is not touched. A question takes a node's row, adds and removes pods, and asks the filters that depend on pods
about what is left (kube-scheduler's NodeInfo, as far as filters need one).
"""

from collections.abc import Mapping

from scheduler.core.table import Held, NodeTable
from services.model.devices import DeviceShare, allocate
from services.model.names import RESOURCE_PODS
from services.model.node import NodeView
from services.model.pod import HostPort, PodView

_NO_IPS: Mapping[str, int] = {}


class NodeInfo:
    """`requested`: by resource, the count of pods among them. `device_free`: thousandths, ABSENT for unhealthy."""

    __slots__ = ("_ports", "device_free", "name", "nodes", "requested", "row", "view")

    def __init__(self, nodes: NodeTable, row: int) -> None:
        view = nodes.views[row]
        assert view is not None, f"row {row} holds no node"
        self.nodes = nodes
        self.row = row
        self.name = view.name
        self.view: NodeView = view
        self.requested = {name: int(column[row]) for name, column in nodes.requested.items()}
        self.device_free: list[int] = nodes.device_free[row, : nodes.device_count[row]].tolist()
        self._ports: dict[tuple[str, int], dict[str, int]] = {}

    def copy(self) -> "NodeInfo":
        """Another one, for a further question."""
        other = NodeInfo.__new__(NodeInfo)
        other.nodes, other.row, other.name, other.view = self.nodes, self.row, self.name, self.view
        other.requested = dict(self.requested)
        other.device_free = list(self.device_free)
        other._ports = {key: dict(ips) for key, ips in self._ports.items()}
        return other

    def admit(self, pod: PodView) -> Held:
        """Counts a pod that would come, with the devices that it would be given."""
        devices: tuple[DeviceShare, ...] = ()
        topology = self.nodes.topologies[self.row]
        if pod.spec.devices is not None and topology is not None:
            links, paths = topology.nvlinks, topology.paths
            devices = allocate(pod.spec.devices, self.device_free, topology.devices, links, paths) or ()
        held = Held(pod, self.name, devices)
        self._count(held, 1)
        return held

    def add(self, held: Held) -> None:
        """Counts a pod again that was removed."""
        self._count(held, 1)

    def remove(self, held: Held) -> None:
        """Stops counting a pod."""
        self._count(held, -1)

    def _count(self, held: Held, sign: int) -> None:
        requested = self.requested
        for name, amount in held.pod.spec.requests.items():
            requested[name] = requested.get(name, 0) + sign * amount
        requested[RESOURCE_PODS] = requested.get(RESOURCE_PODS, 0) + sign
        for share in held.devices:
            if share.index < len(self.device_free) and self.device_free[share.index] >= 0:
                self.device_free[share.index] -= sign * share.milli
        for port in held.pod.spec.host_ports:
            ips = self._ips(port)
            ips[port.ip] = ips.get(port.ip, 0) + sign
            if ips[port.ip] <= 0:
                del ips[port.ip]

    def _ips(self, port: HostPort) -> dict[str, int]:
        key = (port.protocol, port.port)
        ips = self._ports.get(key)
        if ips is None:
            ips = self._ports[key] = dict(self.nodes.ports.get(key, {}).get(self.row, _NO_IPS))
        return ips

    def used_ips(self, port: HostPort) -> Mapping[str, int]:
        """The addresses on which a port is in use, and by how many pods."""
        return self._ips(port)

    def allocatable(self, name: str) -> int:
        """What the node has of a resource."""
        return self.view.allocatable.get(name, 0)
