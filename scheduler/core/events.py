"""What the scheduler's machine takes in, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from scheduler.core.cycle import Decision
from scheduler.core.faults import PluginFault
from scheduler.core.profile import Profile
from services.model.cluster import BudgetView, ServiceView
from services.model.devices import DeviceShare
from services.model.node import NodeView, TopologyView
from services.model.pod import PodView


@dataclass(frozen=True, slots=True)
class PodChanged:
    """`old` None: added; `new` None: gone."""

    old: PodView | None
    new: PodView | None


@dataclass(frozen=True, slots=True)
class NodeChanged:
    old: NodeView | None
    new: NodeView | None


@dataclass(frozen=True, slots=True)
class TopologyChanged:
    name: str
    new: TopologyView | None


class BindVerdict(Enum):
    """What became of a bind, as far as the machine must know."""

    BOUND = "Bound"
    # Bound elsewhere, or the pod is gone or held: nothing left to do for us.
    SETTLED = "Settled"
    # The node could not hold it after all, or the API server refused it at this moment: try again.
    LOST = "Lost"


@dataclass(frozen=True, slots=True)
class BindDone:
    uid: str
    verdict: BindVerdict
    why: str = ""


@dataclass(frozen=True, slots=True)
class NamespaceChanged:
    """`labels` None: gone."""

    name: str
    labels: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class ServiceChanged:
    """`new` None: gone."""

    namespace: str
    name: str
    new: ServiceView | None


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    """`key` is namespace/name; `new` None: gone."""

    key: str
    new: BudgetView | None


@dataclass(frozen=True, slots=True)
class EvictionFailed:
    """The victims of this pod could not be evicted: it need not wait for them."""

    uid: str


@dataclass(frozen=True, slots=True)
class LeadershipChanged:
    leading: bool


@dataclass(frozen=True, slots=True)
class ProfilesChanged:
    """Another configuration is in force from now on."""

    profiles: tuple[Profile, ...]
    backoff_first_seconds: float
    backoff_seconds_max: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed, or there is more to do."""


Event = (
    PodChanged
    | NodeChanged
    | TopologyChanged
    | NamespaceChanged
    | ServiceChanged
    | BudgetChanged
    | BindDone
    | EvictionFailed
    | LeadershipChanged
    | ProfilesChanged
    | Tick
)


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind `pod` to `node_name` with `devices`. `attempt` numbers the pod's tries."""

    pod: PodView
    node_name: str
    devices: tuple[DeviceShare, ...]
    attempt: int


@dataclass(frozen=True, slots=True)
class Attempted:
    """An attempt has ended: tell the pod, its events, its trace. `node_name` of the decision is empty for no place."""

    pod: PodView
    attempt: int
    woken_by: str
    queued_at: float
    moves: tuple[tuple[float, str], ...]
    decision: Decision


@dataclass(frozen=True, slots=True)
class Nominate:
    """`pod` waits for room on `node_name` ("": nowhere any more). It counts here already; tell the store."""

    pod: PodView
    node_name: str


@dataclass(frozen=True, slots=True)
class Evict:
    """These pods have to go from `node_name` for the sake of `pod`."""

    pod: PodView
    node_name: str
    victims: tuple[PodView, ...]


@dataclass(frozen=True, slots=True)
class PluginFailed:
    """A plugin did wrong outside of an attempt; `pod` is the one at hand."""

    pod: PodView
    fault: PluginFault


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Step again at this time, if nothing comes before."""

    at: float


@dataclass(frozen=True, slots=True)
class Continue:
    """There are more pods to try: step again when the inbox has been read."""


Action = Bind | Attempted | Nominate | Evict | PluginFailed | WakeAt | Continue
