"""Whether a machine takes a pod: the checks that a kubelet makes itself, whatever the scheduler thought.

The order, the reasons and the messages are those of Kubernetes' kubelet (pkg/kubelet/lifecycle/predicate.go, 1.36): first
what is missing (OutOfcpu, OutOfpods, OutOfnvidia.com/gpu, ...), then NodeAffinity, NodeName and NodePorts, then devices
(UnexpectedAdmissionError). What counts as used is what containers on the machine hold, those of pods that are being
stopped among them, also after their objects were deleted by force; so a device never runs for two.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.model.devices import MILLI_WHOLE, DeviceShare
from services.model.names import RESOURCE_CPU, RESOURCE_EPHEMERAL_STORAGE, RESOURCE_GPU, RESOURCE_MEMORY, RESOURCE_PODS
from services.model.pod import HostPort, PodSpecView, PodView
from services.model.selectors import node_selector_term_matches

_ANY_IP = "0.0.0.0"  # noqa: S104 - Kubernetes' wildcard
_FIRST = (RESOURCE_CPU, RESOURCE_MEMORY, RESOURCE_EPHEMERAL_STORAGE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """status.reason and status.message of a pod that its kubelet does not take."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod's containers hold on a machine."""

    resources: Mapping[str, int]
    devices: tuple[DeviceShare, ...]
    ports: tuple[HostPort, ...]


@dataclass(slots=True)
class Usage:
    """The sum of the holdings of a machine."""

    pods: int = 0
    resources: dict[str, int] = field(default_factory=dict)
    device_milli: dict[int, int] = field(default_factory=dict)
    ports: dict[HostPort, int] = field(default_factory=dict)

    def take(self, holding: Holding) -> None:
        self._add(holding, 1)

    def give_back(self, holding: Holding) -> None:
        self._add(holding, -1)
        assert self.pods >= 0, "more was given back than taken"

    def _add(self, holding: Holding, sign: int) -> None:
        self.pods += sign
        for name, amount in holding.resources.items():
            self.resources[name] = self.resources.get(name, 0) + sign * amount
        for share in holding.devices:
            self.device_milli[share.index] = self.device_milli.get(share.index, 0) + sign * share.milli
        for port in holding.ports:
            self.ports[port] = self.ports.get(port, 0) + sign
            if not self.ports[port]:
                del self.ports[port]


def holding_of(pod: PodView) -> Holding:
    """What the pod holds once it is admitted: its place in the ledger."""
    placed = pod.placed
    if placed is None:
        return Holding(pod.spec.requests, (), pod.spec.host_ports)
    return Holding(placed.resources, placed.devices, pod.spec.host_ports)


def refuse(
    pod: PodView, node_name: str, labels: Mapping[str, str], allocatable: Mapping[str, int], usage: Usage
) -> Refusal | None:
    """Why the machine does not take the pod; None when it does."""
    holding = holding_of(pod)
    refusal = _missing(holding.resources, allocatable, usage)
    if refusal is None and not _affinity_matches(pod.spec, labels, node_name):
        refusal = _predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if refusal is None and pod.placed is not None and pod.placed.node_name != node_name:
        refusal = _predicate("NodeName", "node(s) didn't match the requested node name")
    if refusal is None and _ports_clash(holding.ports, usage.ports):
        refusal = _predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    if refusal is None:
        refusal = _devices_in_use(holding.devices, usage)
    if refusal is None and pod.placed is None:
        refusal = Refusal("UnexpectedAdmissionError", "the pod has no place in its node's ledger")
    return refusal


def _missing(requests: Mapping[str, int], allocatable: Mapping[str, int], usage: Usage) -> Refusal | None:
    if usage.pods + 1 > allocatable.get(RESOURCE_PODS, 0):
        return _out_of(RESOURCE_PODS, 1, usage.pods, allocatable.get(RESOURCE_PODS, 0))
    for name in (*_FIRST, *sorted(name for name in requests if name not in _FIRST)):
        requested, used, capacity = requests.get(name, 0), usage.resources.get(name, 0), allocatable.get(name, 0)
        if requested > 0 and used + requested > capacity:
            return _out_of(name, requested, used, capacity)
    return None


def _out_of(name: str, requested: int, used: int, capacity: int) -> Refusal:
    return Refusal(
        f"OutOf{name}",
        f"Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}",
    )


def _predicate(name: str, why: str) -> Refusal:
    return Refusal(name, f"Predicate {name} failed: {why}")


def _affinity_matches(spec: PodSpecView, labels: Mapping[str, str], node_name: str) -> bool:
    if any(labels.get(key) != wanted for key, wanted in spec.node_selector.items()):
        return False
    required = spec.node_affinity.required if spec.node_affinity is not None else None
    if required is None:
        return True
    return any(node_selector_term_matches(term, labels, node_name) for term in required)


def _ports_clash(wanted: Iterable[HostPort], used: Iterable[HostPort]) -> bool:
    taken = list(used)
    return any(
        port.port == other.port and port.protocol == other.protocol and _same_address(port.ip, other.ip)
        for port in wanted
        for other in taken
    )


def _same_address(a: str, b: str) -> bool:
    return a == b or _ANY_IP in (a, b)


def _devices_in_use(shares: tuple[DeviceShare, ...], usage: Usage) -> Refusal | None:
    """As the device manager refuses an allocation that its free devices cannot meet."""
    available = sum(usage.device_milli.get(share.index, 0) + share.milli <= MILLI_WHOLE for share in shares)
    if available == len(shares):
        return None
    return Refusal(
        "UnexpectedAdmissionError",
        f"Allocate failed due to requested number of devices unavailable for {RESOURCE_GPU}. "
        f"Requested: {len(shares)}, Available: {available}, which is unexpected",
    )
