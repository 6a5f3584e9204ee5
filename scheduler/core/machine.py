"""The scheduler as a state machine: `step(event, now) -> actions`.

Everything that the scheduler knows is in here: the node table, the queue, what is assumed. The shell feeds it what
informers and binds tell, and does what it answers. Same events and times, same actions; so a recorded run replays.

A pod that gets a node is *assumed* there: counted in the table until the store confirms it (the pod comes back bound) or
the bind is lost (it is taken out again). While the outcome is unknown the assumption stays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from scheduler.core.cycle import Cycle, Decision
from scheduler.core.framework import ClusterEvent, EventKind, Profile, no_stopwatch
from scheduler.core.queue import Queued, SchedulingQueue
from scheduler.core.table import Held, NodeTable
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
class LeadershipChanged:
    leading: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed, or there is more to do."""


Event = PodChanged | NodeChanged | TopologyChanged | BindDone | LeadershipChanged | Tick


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
class WakeAt:
    """Step again at this time, if nothing comes before."""

    at: float


@dataclass(frozen=True, slots=True)
class Continue:
    """There are more pods to try: step again when the inbox has been read."""


Action = Bind | Attempted | WakeAt | Continue
StopwatchFactory = Callable[[], Callable[[str, str], None]]


class Machine:
    """One scheduler. Only a leader tries pods; a standby keeps table and queue warm.

    `stopwatch` makes, for each attempt, the function that the cycle calls after each plugin.
    """

    def __init__(self, profiles: list[Profile], seed: int, stopwatch: StopwatchFactory | None = None) -> None:
        by_name = {profile.scheduler_name: profile for profile in profiles}
        self.nodes = NodeTable()
        self.queue = SchedulingQueue(by_name)
        self.leading = False
        self.attempts = 0
        self.bound = 0
        self._cycles = {name: Cycle(profile, seed) for name, profile in by_name.items()}
        self._stopwatch = stopwatch
        # Where each pod is counted, by uid; assumed ones are in `_assumed` too.
        self._where: dict[str, str] = {}
        self._assumed: dict[str, Bind] = {}

    @property
    def assumed(self) -> int:
        """How many pods are placed here but not yet confirmed."""
        return len(self._assumed)

    @property
    def pods(self) -> int:
        """How many pods are counted on nodes."""
        return len(self._where)

    def step(self, event: Event, now: float) -> list[Action]:
        """Takes in one event and does at most one attempt."""
        match event:
            case PodChanged(old, new):
                self._on_pod(old, new, now)
            case NodeChanged(old_node, new_node):
                self._on_node(old_node, new_node, now)
            case TopologyChanged(name, topology):
                self.nodes.put_topology(name, topology)
                self.queue.on_event(ClusterEvent(EventKind.TOPOLOGY), now)
            case BindDone():
                self._on_bind(event, now)
            case LeadershipChanged(leading):
                self.leading = leading
            case Tick():
                return self._try_next(now)
        return []

    # Objects.

    def _on_pod(self, old: PodView | None, new: PodView | None, now: float) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._pod_gone(old, now)
        if new is None:
            return
        if new.finished:
            self._pod_gone(new, now)
        elif new.spec.node_name:
            self._pod_placed(new)
        elif self.queue.is_ours(new):
            if new.deleting:
                self.queue.remove(new.uid)
            elif new.uid not in self._assumed:
                self.queue.add(new, now)

    def _pod_placed(self, pod: PodView) -> None:
        """The store says where the pod is: that settles any assumption."""
        self.queue.remove(pod.uid)
        self._assumed.pop(pod.uid, None)
        devices = pod.placed.devices if pod.placed is not None else ()
        known = self._where.get(pod.uid)
        if known == pod.spec.node_name and self.nodes.refresh(Held(pod, known, devices)):
            return
        if known is not None:
            self.nodes.release(known, pod.uid)
        self.nodes.hold(Held(pod, pod.spec.node_name, devices))
        self._where[pod.uid] = pod.spec.node_name

    def _pod_gone(self, pod: PodView, now: float) -> None:
        self.queue.remove(pod.uid)
        self._assumed.pop(pod.uid, None)
        node_name = self._where.pop(pod.uid, None)
        if node_name is not None:
            self.nodes.release(node_name, pod.uid)
            self.queue.on_event(ClusterEvent(EventKind.POD_REMOVED, pod=pod), now)

    def _on_node(self, old: NodeView | None, new: NodeView | None, now: float) -> None:
        if new is None:
            assert old is not None
            self.nodes.remove_node(old.name)
            return
        self.nodes.put_node(new)
        for kind in _node_event_kinds(old, new):
            self.queue.on_event(ClusterEvent(kind, node=new, old=old), now)

    # Attempts.

    def _try_next(self, now: float) -> list[Action]:
        if not self.leading:
            return []
        queued = self.queue.pop(now)
        if queued is None:
            wake = self.queue.next_wake()
            return [WakeAt(wake)] if wake is not None else []
        self.attempts += 1
        lap = self._stopwatch() if self._stopwatch is not None else no_stopwatch
        decision = self._cycles[queued.pod.spec.scheduler_name].run(queued.pod, self.nodes, lap)
        actions = self._act(queued, decision, now)
        actions.append(Continue())
        return actions

    def _act(self, queued: Queued, decision: Decision, now: float) -> list[Action]:
        pod = queued.pod
        attempted = Attempted(pod, queued.attempts, queued.woken_by, queued.enqueued_at, tuple(queued.moves), decision)
        queued.moves.clear()
        if not decision.node_name:
            if decision.error:
                self.queue.retry(pod.uid, now, "PluginError")
            else:
                self.queue.failed(pod.uid, decision.failed_plugins, now)
            return [attempted]
        self.queue.placed_after_flush(queued)
        bind = Bind(pod, decision.node_name, decision.devices, queued.attempts)
        self._assumed[pod.uid] = bind
        self._where[pod.uid] = decision.node_name
        self.nodes.hold(Held(pod, decision.node_name, decision.devices))
        return [attempted, bind]

    def _on_bind(self, done: BindDone, now: float) -> None:
        if done.verdict is BindVerdict.BOUND:
            self.bound += 1
        if done.verdict is not BindVerdict.BOUND and self._assumed.pop(done.uid, None) is not None:
            node_name = self._where.pop(done.uid)
            held = self.nodes.held[node_name][done.uid]
            self.nodes.release(node_name, done.uid)
            self._cycles[held.pod.spec.scheduler_name].unreserve(held.pod, node_name)
            # The room that it did not use may be what another pod waits for.
            self.queue.on_event(ClusterEvent(EventKind.POD_REMOVED, pod=held.pod), now)
        if done.verdict is BindVerdict.LOST:
            self.queue.retry(done.uid, now, done.why or "BindLost")
        else:
            # Bound, and the informer will say so; or settled by somebody else.
            self.queue.remove(done.uid)


def _node_event_kinds(old: NodeView | None, new: NodeView) -> list[EventKind]:
    if old is None or old.uid != new.uid:
        return [EventKind.NODE_ADD]
    kinds = []
    if old.allocatable != new.allocatable:
        kinds.append(EventKind.NODE_ALLOCATABLE)
    if old.labels != new.labels:
        kinds.append(EventKind.NODE_LABEL)
    if old.taints != new.taints or old.unschedulable != new.unschedulable:
        kinds.append(EventKind.NODE_TAINT)
    return kinds
