"""What goes into the kubelets' state machine and what comes out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kubelet_sim.core.pods import KubeletPod


class Instant(NamedTuple):
    """`monotonic` (seconds) decides; `wall_ns` (Unix nanoseconds) is written down."""

    monotonic: float
    wall_ns: int


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node that this fleet plays, or a newer version of it. `address`: its InternalIP, empty where it has none."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    address: str = ""


@dataclass(frozen=True, slots=True)
class NodeGone:
    name: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A bound pod, on any node. `own`: this version is one that this process wrote, so it is news to nobody here."""

    pod: KubeletPod
    own: bool = False


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod's object is no more; `node_name` as last seen."""

    key: str
    node_name: str


@dataclass(frozen=True, slots=True)
class Settle:
    """A batch of events is over, or a timer is due."""


Event = NodeSeen | NodeGone | PodSeen | PodGone | Settle


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Merge `status` into the status of the pod with that uid. A later one for the same pod replaces it while unsent."""

    namespace: str
    name: str
    uid: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Delete the pod with that uid, grace 0: its containers have stopped."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A span that is over, under the pod's own trace. `error` empty: it went well."""

    name: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


Action = WriteStatus | RemovePod | Trace
