"""The scheduling framework: the extension points, and what a plugin may answer at each.

The points and their order are Kubernetes' (pkg/scheduler/framework, 1.36). Points up to Permit are pure and synchronous
and look at all nodes at once: `filter` answers a `Mask`, `score` a column. A plugin defines the methods of the points that
it takes part in, and no others; `Plugin` subclasses are found by the names of their methods. A Filter that depends on the
pods of a node also defines `filter_one`, which answers for one node as it would be with other pods on it; and `add_pod`
and `remove_pod` (Kubernetes' PreFilterExtensions) where it keeps what PreFilter found in the cycle's state.
`PerNodeFilter` and `PerNodeScore` are for authors who want one node at a time: slower, same answer. PreBind and PostBind
are asynchronous and are called by the shell, around the Bind that DefaultBinder stands for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from scheduler.core.node_info import NodeInfo
from scheduler.core.status import Code, Status
from scheduler.core.table import I64, Bools, Held, NodeTable
from services.model.devices import DeviceShare
from services.model.node import NodeView
from services.model.pod import PodView

SCORE_MAX = 100
# Called with (extension point, plugin) after each plugin's work; the core itself never looks at a clock.
Stopwatch = Callable[[str, str], None]
T = TypeVar("T")


def no_stopwatch(_point: str, _plugin: str) -> None:
    """Times nothing."""


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """A typed name in a CycleState; each plugin owns its own."""

    name: str


class CycleState:
    """What plugins keep for one cycle of one pod."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {}

    def write(self, key: Key[T], value: T) -> None:
        self._values[key.name] = value

    def read(self, key: Key[T]) -> T:
        """Raises KeyError when nothing was written."""
        return cast("T", self._values[key.name])

    def get(self, key: Key[T]) -> T | None:
        return cast("T | None", self._values.get(key.name))

    def clone(self) -> "CycleState":
        """A copy whose entries are shared until they are written."""
        copy = CycleState()
        copy._values = dict(self._values)
        return copy


@dataclass(frozen=True, slots=True)
class Mask:
    """A Filter's verdict on every row: 0 passes; any other number is turned into code and reasons by `explain`."""

    codes: I64
    explain: Callable[[int], tuple[Code, tuple[str, ...]]]


class EventKind(Enum):
    """What may wake a waiting pod (Kubernetes' ClusterEvent)."""

    NODE_ADD = "NodeAdd"
    NODE_ALLOCATABLE = "NodeAllocatableChange"
    NODE_LABEL = "NodeLabelChange"
    NODE_TAINT = "NodeTaintChange"
    TOPOLOGY = "NodeTopologyChange"
    NODE_REMOVED = "NodeDelete"
    # Of pods on nodes. A pod that waited for a node and does so no more counts as removed too.
    POD_ADDED = "AssignedPodAdd"
    POD_UPDATED = "AssignedPodUpdate"
    POD_REMOVED = "AssignedPodDelete"
    NAMESPACE = "NamespaceUpdate"
    # Of the waiting pod itself.
    POD_CHANGED = "PodUpdate"


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """`node` is set for node events (`old` before it), `pod` for pod events (`old_pod` before it)."""

    kind: EventKind
    node: NodeView | None = None
    old: NodeView | None = None
    pod: PodView | None = None
    old_pod: PodView | None = None


class LooksAt(Enum):
    """What a plugin's verdict on a node, and its score, depend on besides the pod."""

    # Labels, taints and the like, which move `NodeTable.static_version`.
    STATIC = "static"
    # Also what that very node holds.
    NODE = "node"
    # Anything.
    CLUSTER = "cluster"


class Plugin:
    """Base of all plugins. `name` stands in configuration, reasons, spans and metrics.

    `events`: the kinds of which `wakes` is asked at all (Kubernetes' EventsToRegister); None for every kind. `looks_at`
    lets a cycle go by the one before it (repeats.py); when in doubt, everything.
    """

    name = ""
    looks_at = LooksAt.CLUSTER
    events: frozenset[EventKind] | None = None

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """Whether `event` may make schedulable a pod that this plugin rejected (a queueing hint). When in doubt, yes."""
        del event, pod
        return True


@runtime_checkable
class PreEnqueuePlugin(Protocol):
    name: str

    def pre_enqueue(self, pod: PodView) -> Status: ...


@runtime_checkable
class QueueSortPlugin(Protocol):
    name: str

    def sort_key(self, pod: PodView, added_at: float) -> tuple[float, ...]: ...


@runtime_checkable
class PreFilterPlugin(Protocol):
    name: str
    looks_at: LooksAt

    def pre_filter(self, state: CycleState, pod: PodView, nodes: NodeTable) -> "PreFilterResult": ...


@runtime_checkable
class FilterPlugin(Protocol):
    name: str
    looks_at: LooksAt

    def filter(self, state: CycleState, pod: PodView, nodes: NodeTable) -> Mask | None:
        """None: no node is rejected."""
        ...


@runtime_checkable
class FilterOnePlugin(Protocol):
    """A Filter whose verdict depends on the node's pods: it is asked again for one node with other pods on it."""

    name: str

    def filter_one(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status: ...


@runtime_checkable
class PreFilterExtensions(Protocol):
    """`other` comes to `node`, or leaves it: brings what PreFilter wrote into `state` up to date.

    The state is a clone of the cycle's, whose values are shared: a changed value is written anew.
    """

    name: str

    def add_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None: ...

    def remove_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None: ...


class WhatIf(Protocol):
    """What a PostFilter plugin may ask about a pod that fits nowhere."""

    # What the Filter plugins know of the cycle; a question works on a clone.
    state: CycleState

    def resolvable(self) -> Bools:
        """By row: the node is there, and was rejected for something that the removal of pods may change."""
        ...

    def unresolvable(self, node_name: str) -> bool:
        """Whether the node was rejected for good."""
        ...

    def only_resources(self) -> Bools:
        """By row: of what depends on pods there, only NodeResourcesFit may reject the pod, and nobody waits for the node."""
        ...

    def add(self, state: CycleState, node: NodeInfo, held: Held) -> None: ...

    def remove(self, state: CycleState, node: NodeInfo, held: Held) -> None: ...

    def fits(self, state: CycleState, node: NodeInfo) -> Status:
        """The verdict on one node as it is now in the question; pods that wait for room there are counted."""
        ...


@runtime_checkable
class PostFilterPlugin(Protocol):
    name: str

    def post_filter(self, state: CycleState, pod: PodView, nodes: NodeTable, what_if: WhatIf) -> "PostFilterResult": ...


@runtime_checkable
class PreScorePlugin(Protocol):
    name: str

    def pre_score(self, state: CycleState, pod: PodView, nodes: NodeTable, feasible: Bools) -> Status: ...


@runtime_checkable
class ScorePlugin(Protocol):
    name: str
    looks_at: LooksAt

    def score(self, state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64 | int:
        """The scores of the rows `feasible`, which are ascending; one number where all have the same."""
        ...


@runtime_checkable
class NormalizePlugin(Protocol):
    name: str

    def normalize(self, state: CycleState, pod: PodView, scores: I64) -> I64 | int:
        """Not called where Score answered one number for all: then that is final."""
        ...


@runtime_checkable
class ReservePlugin(Protocol):
    name: str

    def reserve(self, state: CycleState, pod: PodView, nodes: NodeTable, row: int) -> "Reservation": ...


@runtime_checkable
class UnreservePlugin(Protocol):
    """Called when a reservation came to nothing: a later plugin refused, or the bind was lost."""

    name: str

    def unreserve(self, pod: PodView, node_name: str) -> None: ...


@runtime_checkable
class PreBindPlugin(Protocol):
    """Called by the shell before the bind; a status other than Success gives the place up, and the pod is tried again."""

    name: str

    async def pre_bind(self, pod: PodView, node_name: str) -> Status: ...


@runtime_checkable
class PostBindPlugin(Protocol):
    """Called by the shell after the store has said that the pod is bound."""

    name: str

    async def post_bind(self, pod: PodView, node_name: str) -> None: ...


@runtime_checkable
class PermitPlugin(Protocol):
    name: str

    def permit(self, state: CycleState, pod: PodView, node_name: str) -> tuple[Status, float]: ...


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """`status`: Success, Skip, or a refusal of the pod as a whole. `node_names`: where to look; None for everywhere."""

    status: Status
    node_names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """`status` Success: the pod may wait for room on `node_name`, once the `victims` are gone. `clears`: a nomination that
    the pod has is void.
    """

    status: Status
    node_name: str = ""
    victims: tuple[Held, ...] = ()
    clears: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a Reserve plugin set aside: the devices, for the plugin that chooses them."""

    status: Status
    devices: tuple[DeviceShare, ...] = ()


class PerNodeFilter(Plugin):
    """An adapter for authors who want one node at a time: subclasses define `filter_node`."""

    def filter_node(self, state: CycleState, pod: PodView, node: NodeView) -> Status:
        del state, pod, node
        return Status(Code.SUCCESS)

    def filter(self, state: CycleState, pod: PodView, nodes: NodeTable) -> Mask:
        """All rows through `filter_node`; equal statuses share a number."""
        codes = np.zeros(nodes.size, dtype=np.int64)
        known: dict[Status, int] = {}
        for row, view in enumerate(nodes.views):
            if view is not None:
                status = self.filter_node(state, pod, view)
                if not status.ok:
                    codes[row] = known.setdefault(status, len(known) + 1)
        statuses = {number: status for status, number in known.items()}

        def explain(number: int) -> tuple[Code, tuple[str, ...]]:
            return statuses[number].code, statuses[number].reasons

        return Mask(codes, explain)


class PerNodeScore(Plugin):
    """An adapter for authors who want one node at a time: subclasses define `score_node`, 0 to 100."""

    def score_node(self, state: CycleState, pod: PodView, node: NodeView) -> int:
        del state, pod, node
        return 0

    def score(self, state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64:
        views = [nodes.views[row] for row in feasible.tolist()]
        return np.array([self.score_node(state, pod, view) for view in views if view is not None], dtype=np.int64)
