"""The scheduler as a state machine: `step(event, now) -> actions`.

Everything that the scheduler knows is in here: the node table, the queue, what is assumed. The shell feeds it what
informers and binds tell, and does what it answers. Same events and times, same actions; so a recorded run replays.

A pod that gets a node is *assumed* there: counted in the table until the store confirms it (the pod comes back bound) or
the bind is lost (it is taken out again). While the outcome is unknown the assumption stays.
"""

from collections.abc import Callable
from dataclasses import replace

from scheduler.core.cycle import Cycle, Decision, Faults
from scheduler.core.events import (
    Action,
    Attempted,
    Bind,
    BindDone,
    BindVerdict,
    BudgetChanged,
    Continue,
    Event,
    Evict,
    EvictionFailed,
    LeadershipChanged,
    NamespaceChanged,
    NodeChanged,
    Nominate,
    PluginFailed,
    PodChanged,
    ProfilesChanged,
    ServiceChanged,
    Tick,
    TopologyChanged,
    WakeAt,
)
from scheduler.core.framework import ClusterEvent, EventKind, no_stopwatch
from scheduler.core.profile import Profile
from scheduler.core.queue import Queued, SchedulingQueue
from scheduler.core.table import Held, NodeTable
from services.model.node import NodeView
from services.model.pod import PodView

__all__ = [
    "Action",
    "Attempted",
    "Bind",
    "BindDone",
    "BindVerdict",
    "BudgetChanged",
    "Continue",
    "Event",
    "Evict",
    "EvictionFailed",
    "LeadershipChanged",
    "Machine",
    "NamespaceChanged",
    "NodeChanged",
    "Nominate",
    "PluginFailed",
    "PodChanged",
    "ServiceChanged",
    "Tick",
    "TopologyChanged",
    "WakeAt",
]

StopwatchFactory = Callable[[], Callable[[str, str], None]]


class Machine:
    """One scheduler. Only a leader tries pods; a standby keeps table and queue warm.

    `stopwatch` makes, for each attempt, the function that the cycle calls after each plugin.
    """

    def __init__(self, profiles: list[Profile], seed: int, stopwatch: StopwatchFactory | None = None) -> None:
        by_name = {profile.scheduler_name: profile for profile in profiles}
        self.nodes = NodeTable()
        # What plugins did wrong outside of an attempt, until the step's end.
        self._faults: Faults = []
        self.queue = SchedulingQueue(by_name, self._faults)
        self.leading = False
        self.attempts = 0
        self.bound = 0
        self._seed = seed
        self._cycles = {name: Cycle(profile, seed, self._faults) for name, profile in by_name.items()}
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
        actions = self._take(event, now)
        if self._faults:
            actions = [*actions, *(PluginFailed(pod, fault) for pod, fault in self._faults)]
            self._faults.clear()
        return actions

    def _take(self, event: Event, now: float) -> list[Action]:
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
            case NamespaceChanged(namespace, labels):
                if self.nodes.pods.put_namespace(namespace, labels):
                    self.queue.on_event(ClusterEvent(EventKind.NAMESPACE), now)
            case ServiceChanged(namespace, service_name, service):
                self.nodes.put_service(namespace, service_name, service)
            case BudgetChanged(key, budget):
                self.nodes.put_budget(key, budget)
            case EvictionFailed(uid):
                self.queue.activate(uid, now, "EvictionFailed")
            case LeadershipChanged(leading):
                self.leading = leading
            case ProfilesChanged():
                self._on_profiles(event, now)
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
            self._pod_placed(new, now)
        elif self.queue.is_ours(new):
            if new.deleting:
                self.queue.remove(new.uid)
                self._end_nomination(new, now)
            elif new.uid not in self._assumed:
                self._learn_nomination(old, new, now)
                self.queue.add(new, now)
            else:
                self._update_assumed(new, now)

    def _update_assumed(self, pod: PodView, now: float) -> None:
        """It changed while it is being bound: should the bind be lost, it is tried again as it is then."""
        self._assumed[pod.uid] = replace(self._assumed[pod.uid], pod=pod)
        if self.queue.get(pod.uid) is not None:
            self.queue.update(pod, now)

    def _learn_nomination(self, old: PodView | None, new: PodView, now: float) -> None:
        """What the store says of it counts when it changes; until then, what was decided here."""
        known = self.nodes.nominated_node(new.uid)
        told = old is None or old.uid != new.uid or old.nominated_node_name != new.nominated_node_name
        node_name = new.nominated_node_name if told else known
        if known and node_name != known:
            self._end_nomination(new, now)
        if node_name:
            self.nodes.nominate(node_name, new)

    def _end_nomination(self, pod: PodView, now: float) -> None:
        """The room that was kept for the pod is free for others."""
        if self.nodes.nominated_node(pod.uid):
            self.nodes.unnominate(pod)
            self.queue.on_event(ClusterEvent(EventKind.POD_REMOVED, pod=pod), now)

    def _pod_placed(self, pod: PodView, now: float) -> None:
        """The store says where the pod is: that settles any assumption."""
        if self.nodes.nominated_node(pod.uid) == pod.spec.node_name:
            self.nodes.unnominate(pod)
        self.queue.remove(pod.uid)
        self._assumed.pop(pod.uid, None)
        devices = pod.placed.devices if pod.placed is not None else ()
        known = self._where.get(pod.uid)
        if known == pod.spec.node_name and self.nodes.refresh(Held(pod, known, devices)):
            return
        before = None
        if known is not None:
            before = self.nodes.held[known][pod.uid].pod
            self.nodes.release(known, pod.uid)
        self.nodes.hold(Held(pod, pod.spec.node_name, devices))
        self._where[pod.uid] = pod.spec.node_name
        if known != pod.spec.node_name:
            if before is not None:
                self.queue.on_event(ClusterEvent(EventKind.POD_REMOVED, pod=before), now)
            self.queue.on_event(ClusterEvent(EventKind.POD_ADDED, pod=pod), now)
        elif before is not None and _counts_otherwise(before, pod):
            self.queue.on_event(ClusterEvent(EventKind.POD_UPDATED, pod=pod, old_pod=before), now)
        self._end_nomination(pod, now)

    def _pod_gone(self, pod: PodView, now: float) -> None:
        self.queue.remove(pod.uid)
        self._end_nomination(pod, now)
        self._assumed.pop(pod.uid, None)
        node_name = self._where.pop(pod.uid, None)
        if node_name is not None:
            self.nodes.release(node_name, pod.uid)
            self.queue.on_event(ClusterEvent(EventKind.POD_REMOVED, pod=pod), now)

    def _on_node(self, old: NodeView | None, new: NodeView | None, now: float) -> None:
        if new is None:
            assert old is not None
            self.nodes.remove_node(old.name)
            self.queue.on_event(ClusterEvent(EventKind.NODE_REMOVED, old=old), now)
            return
        self.nodes.put_node(new)
        for kind in _node_event_kinds(old, new):
            self.queue.on_event(ClusterEvent(kind, node=new, old=old), now)

    def _on_profiles(self, event: ProfilesChanged, now: float) -> None:
        by_name = {profile.scheduler_name: profile for profile in event.profiles}
        self._cycles = {name: Cycle(profile, self._seed, self._faults) for name, profile in by_name.items()}
        for pod in self.queue.reconfigure(by_name, event.backoff_first_seconds, event.backoff_seconds_max, now):
            # Nobody here will use the room that was kept for it.
            self._end_nomination(pod, now)

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
            return [attempted, *self._make_room(pod, decision, now)]
        self.queue.placed_after_flush(queued)
        bind = Bind(pod, decision.node_name, decision.devices, queued.attempts)
        self._assumed[pod.uid] = bind
        self._where[pod.uid] = decision.node_name
        self.nodes.hold(Held(pod, decision.node_name, decision.devices))
        if self.nodes.nominated_node(pod.uid) == decision.node_name:
            self.nodes.unnominate(pod)
        self._end_nomination(pod, now)
        self.queue.on_event(ClusterEvent(EventKind.POD_ADDED, pod=pod), now)
        return [attempted, bind]

    def _make_room(self, pod: PodView, decision: Decision, now: float) -> list[Action]:
        """The nomination counts before anybody is told to go, so that nobody else takes the room (preemption.go)."""
        if not decision.victims:
            if decision.clears_nomination and self.nodes.nominated_node(pod.uid):
                self._end_nomination(pod, now)
                return [Nominate(pod, "")]
            return []
        node_name = decision.nominated_node
        if self.nodes.nominated_node(pod.uid) != node_name:
            self._end_nomination(pod, now)
        actions: list[Action] = []
        # Those of lower priority that wait for the same room may find other room.
        for other in list(self.nodes.nominated.get(node_name, {}).values()):
            if other.spec.priority < pod.spec.priority:
                self.nodes.unnominate(other)
                self.queue.activate(other.uid, now, "NominationCleared")
                actions.append(Nominate(other, ""))
        self.nodes.nominate(node_name, pod)
        victims = tuple(held.pod for held in decision.victims)
        return [*actions, Nominate(pod, node_name), Evict(pod, node_name, victims)]

    def _on_bind(self, done: BindDone, now: float) -> None:
        if done.verdict is BindVerdict.BOUND:
            self.bound += 1
        bind = self._assumed.pop(done.uid, None) if done.verdict is not BindVerdict.BOUND else None
        if bind is not None:
            node_name = self._where.pop(done.uid)
            held = self.nodes.held[node_name][done.uid]
            self.nodes.release(node_name, done.uid)
            cycle = self._cycles.get(held.pod.spec.scheduler_name)
            if cycle is not None:
                cycle.unreserve(held.pod, node_name)
            # The room that it did not use may be what another pod waits for.
            self.queue.on_event(ClusterEvent(EventKind.POD_REMOVED, pod=held.pod), now)
        if done.verdict is BindVerdict.LOST:
            queued = self.queue.get(done.uid)
            if queued is not None and queued.pod.nominated_node_name:
                self.nodes.nominate(queued.pod.nominated_node_name, queued.pod)
            if queued is None and bind is not None and self.queue.is_ours(bind.pod):
                # Its profile went while it was being bound, and came back.
                self.queue.add(bind.pod, now)
            self.queue.retry(done.uid, now, done.why or "BindLost")
        else:
            # Bound, and the informer will say so; or settled by somebody else.
            self.queue.remove(done.uid)


def _counts_otherwise(before: PodView, now: PodView) -> bool:
    """Whether a pod on its node counts otherwise for others than it did."""
    return before.labels != now.labels or before.deleting != now.deleting or before.spec.requests != now.spec.requests


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
