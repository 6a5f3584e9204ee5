"""The kubelets of a whole fleet as one state machine: `step(event, now) -> actions`, without input or output.

A pod that arrives on a machine waits for the next `Settle`, which the shell sends after each batch of events: only then
are pods admitted, those that already run first and the rest in the order of their creation, so that a batch's order (a
list comes by name) decides nothing. Timers lie in one heap; a stale one is recognised by its token.

What a pod holds it holds until its containers have stopped, however its object goes. A deletion by force therefore
leaves an orphan that stops by itself, and until then its devices are refused to others. A pod that someone else declared
finished is stopped in the same way.

Starting again: the API is the memory. Pods that are Running are adopted as running, and end when they would have ended:
the start of their containers stands in their status, their duration follows from the seed, and the wall clock says what is
left of it. Pods that were acknowledged but not running start anew. A terminal status that was decided but not yet written
is decided again.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from kubelet_sim.core import status
from kubelet_sim.core.addresses import PodAddresses, host_address
from kubelet_sim.core.admission import Holding, Usage, holding_of, refuse
from kubelet_sim.core.durations import Durations
from kubelet_sim.core.events import (
    Action,
    Event,
    Instant,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    RemovePod,
    Settle,
    Trace,
    WriteStatus,
)
from kubelet_sim.core.pods import KubeletPod, Stage
from kubelet_sim.core.status import StageTimes

_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class _Node:
    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    host_ip: str
    usage: Usage = field(default_factory=Usage)


@dataclass(slots=True)
class _Record:
    """One pod on one machine. `gone`: its object is no more, only its containers are. `token` is its live timer's."""

    pod: KubeletPod
    node: _Node
    stage: Stage
    times: StageTimes
    holding: Holding | None = None
    pod_ip: str = ""
    seen_ns: int = 0
    gone: bool = False
    token: int = 0


class KubeletMachine:
    """`next_due` is the monotonic second at which the next `Settle` is due by time alone; None: never."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._nodes: dict[str, _Node] = {}
        self._records: dict[str, _Record] = {}
        # Pods of machines that are not ours, or not yet known; by node, then key.
        self._parked: dict[str, dict[str, KubeletPod]] = {}
        # Containers that outlive their pod's object; by uid.
        self._orphans: dict[str, _Record] = {}
        self._admitting: dict[str, _Record] = {}
        self._timers: list[tuple[float, int, str]] = []
        self._tokens = 0
        self._addresses = PodAddresses()

    @property
    def next_due(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    def count_by_stage(self) -> dict[str, int]:
        """Pods on machines of this fleet, by stage; orphans count as stopping."""
        counts = {stage.value: 0 for stage in Stage}
        for record in (*self._records.values(), *self._orphans.values()):
            counts[record.stage.value] += 1
        return counts

    def holdings(self, node_name: str) -> Usage | None:
        """What containers hold on a machine now; None when it is not ours."""
        node = self._nodes.get(node_name)
        return node.usage if node is not None else None

    def step(self, event: Event, now: Instant) -> list[Action]:
        """Takes one event. The same events at the same instants give the same actions."""
        match event:
            case NodeSeen():
                return self._node_seen(event, now)
            case NodeGone(name):
                self._node_gone(name)
                return []
            case PodSeen(pod, own):
                return self._pod_seen(pod, now, own=own)
            case PodGone(key, node_name):
                self._pod_gone(key, now)
                self._parked.get(node_name, {}).pop(key, None)
                return []
            case Settle():
                return self._settle(now)

    # Nodes

    def _node_seen(self, event: NodeSeen, now: Instant) -> list[Action]:
        node = self._nodes.get(event.name)
        if node is not None:
            node.labels, node.allocatable = event.labels, event.allocatable
            return []
        self._nodes[event.name] = _Node(
            event.name, event.labels, event.allocatable, event.address or host_address(event.name)
        )
        return [action for pod in self._parked.pop(event.name, {}).values() for action in self._arrive(pod, now)]

    def _node_gone(self, name: str) -> None:
        """The machine is no longer ours: all that ran on it is gone with it, and its pods are only remembered."""
        node = self._nodes.pop(name, None)
        if node is None:
            return
        for key in [key for key, record in self._records.items() if record.node is node]:
            record = self._records.pop(key)
            self._admitting.pop(key, None)
            self._release(record)
            self._park(record.pod)
        for uid in [uid for uid, record in self._orphans.items() if record.node is node]:
            self._release(self._orphans.pop(uid))

    # Pods

    def _pod_seen(self, pod: KubeletPod, now: Instant, *, own: bool) -> list[Action]:
        record = self._records.get(pod.key)
        if record is not None and record.pod.view.uid != pod.view.uid:
            self._pod_gone(pod.key, now)
            record = None
        if record is None:
            if pod.node_name in self._nodes:
                return self._arrive(pod, now)
            self._park(pod)
            return []
        record.pod = pod
        if record.stage is Stage.RUNNING and pod.view.phase == "Pending" and not own:
            # A write of an earlier stage landed late, over the newer one: say again how it is.
            return [*self._changed(record, now), *self._say_running(record)]
        return self._changed(record, now)

    def _park(self, pod: KubeletPod) -> None:
        if pod.node_name:
            self._parked.setdefault(pod.node_name, {})[pod.key] = pod

    def _pod_gone(self, key: str, now: Instant) -> None:
        record = self._records.pop(key, None)
        if record is None:
            return
        self._admitting.pop(key, None)
        if record.stage.holds:
            self._orphan(record, now)

    def _orphan(self, record: _Record, now: Instant) -> None:
        record.gone = True
        self._orphans[record.pod.view.uid] = record
        if record.stage is not Stage.STOPPING:
            self._begin_stopping(record, now)

    def _arrive(self, pod: KubeletPod, now: Instant) -> list[Action]:
        """A pod that is new to this process, on a machine of ours."""
        record = _Record(pod, self._nodes[pod.node_name], Stage.ADMITTING, StageTimes(0), seen_ns=now.wall_ns)
        if pod.view.finished and not pod.view.deleting:
            return []
        self._records[pod.key] = record
        if pod.view.finished or (pod.view.deleting and not pod.acknowledged_ns):
            return [self._remove(record)]
        if pod.acknowledged_ns and pod.view.placed is not None:
            self._adopt(record, now)
            return self._changed(record, now)
        self._admitting[pod.key] = record
        return []

    def _adopt(self, record: _Record, now: Instant) -> None:
        """Containers that an earlier process of this fleet started: they exist, so nothing is checked."""
        pod = record.pod
        self._hold(record)
        record.pod_ip = self._addresses.keep(pod.pod_ip)
        record.times = StageTimes(pod.acknowledged_ns, pod.acknowledged_ns, 0, pod.running_ns)
        if pod.view.phase == "Running":
            record.stage = Stage.RUNNING
            record.times = StageTimes(
                pod.acknowledged_ns,
                pod.acknowledged_ns,
                len(pod.containers.plain_init),
                pod.running_ns or pod.acknowledged_ns,
            )
            ran_seconds = max(0.0, (now.wall_ns - record.times.running_ns) / _SECOND_NS)
            self._time_run(record, now, ran_seconds)
        else:
            record.stage = Stage.CREATING
            self._set_timer(record, now, self._durations.create(pod.key))

    def _changed(self, record: _Record, now: Instant) -> list[Action]:
        """A newer version of a pod that is already known."""
        view = record.pod.view
        if record.stage is Stage.FINISHED:
            if view.deleting:
                return [self._remove(record)]
            if view.finished:
                # The terminal status has arrived and never reverts: there is nothing left to remember.
                del self._records[view.key]
            return []
        if view.finished and record.stage.holds and record.stage is not Stage.STOPPING:
            self._begin_stopping(record, now)
            return []
        if view.deleting:
            if record.stage is Stage.ADMITTING:
                self._admitting.pop(view.key, None)
                return [self._remove(record)]
            if record.stage.holds and record.stage is not Stage.STOPPING:
                self._begin_stopping(record, now)
        return []

    def _begin_stopping(self, record: _Record, now: Instant) -> None:
        pod = record.pod
        grace = pod.grace_seconds if pod.view.deleting else pod.view.spec.termination_grace_period_seconds
        record.stage = Stage.STOPPING
        self._set_timer(record, now, self._durations.stop(pod.key, grace))

    def _remove(self, record: _Record) -> RemovePod:
        record.stage = Stage.REMOVING
        record.token = 0
        view = record.pod.view
        return RemovePod(view.namespace, view.name, view.uid)

    # Time

    def _settle(self, now: Instant) -> list[Action]:
        """Timers first: what has stopped by now makes room for what waits."""
        actions: list[Action] = []
        while self._timers and self._timers[0][0] <= now.monotonic:
            _, token, uid_key = heapq.heappop(self._timers)
            record = self._record_of(uid_key)
            if record is not None and record.token == token:
                record.token = 0
                actions.extend(self._due(record, now))
        waiting = sorted(self._admitting.values(), key=lambda item: (item.pod.view.created_at_ns, item.pod.key))
        self._admitting.clear()
        for record in waiting:
            actions.extend(self._admit(record, now))
        return actions

    def _record_of(self, uid_key: str) -> _Record | None:
        uid, _, key = uid_key.partition(" ")
        record = self._records.get(key)
        if record is not None and record.pod.view.uid == uid:
            return record
        return self._orphans.get(uid)

    def _set_timer(self, record: _Record, now: Instant, seconds: float) -> None:
        self._tokens += 1
        record.token = self._tokens
        uid_key = f"{record.pod.view.uid} {record.pod.key}"
        heapq.heappush(self._timers, (now.monotonic + seconds, self._tokens, uid_key))

    def _admit(self, record: _Record, now: Instant) -> list[Action]:
        pod, node = record.pod, record.node
        refusal = refuse(pod.view, node.name, node.labels, node.allocatable, node.usage)
        attributes = {
            "k8s.pod.name": pod.view.name,
            "k8s.namespace.name": pod.view.namespace,
            "k8s.node.name": node.name,
        }
        if refusal is not None:
            record.stage = Stage.FINISHED
            message = f"{refusal.reason}: {refusal.message}"
            return [
                Trace("kubelet.admit", pod.view.traceparent, record.seen_ns, now.wall_ns, attributes, message),
                self._write(record, status.refused_status(pod, refusal, now.wall_ns)),
            ]
        self._hold(record)
        record.times = StageTimes(now.wall_ns)
        record.stage = Stage.CREATING
        self._set_timer(record, now, self._durations.create(pod.key))
        devices = ",".join(str(share.index) for share in record.holding.devices) if record.holding else ""
        if devices:
            attributes["orrery.devices"] = devices
        return [
            Trace("kubelet.admit", pod.view.traceparent, record.seen_ns, now.wall_ns, attributes),
            self._write(record, status.creating_status(pod, record.times, node.host_ip)),
        ]

    def _due(self, record: _Record, now: Instant) -> list[Action]:
        """The step that a record's timer was set for is over."""
        if record.stage in (Stage.CREATING, Stage.INITIALIZING):
            return self._start_next(record, now)
        if record.stage is Stage.RUNNING:
            return self._succeed(record, now)
        assert record.stage is Stage.STOPPING, f"a timer in stage {record.stage}"
        return self._stopped(record)

    def _start_next(self, record: _Record, now: Instant) -> list[Action]:
        """Starts the next init container, or after the last one the pod's own containers."""
        pod, node, times = record.pod, record.node, record.times
        record.pod_ip = record.pod_ip or self._addresses.take()
        done = times.inits_done + 1 if record.stage is Stage.INITIALIZING else 0
        if done < len(pod.containers.plain_init):
            record.stage = Stage.INITIALIZING
            record.times = StageTimes(times.acknowledged_ns, now.wall_ns, done)
            self._set_timer(record, now, self._durations.init(pod.key, done))
            return [
                self._write(record, status.initializing_status(pod, record.times, node.host_ip, record.pod_ip)),
            ]
        record.stage = Stage.RUNNING
        record.times = StageTimes(times.acknowledged_ns, times.init_started_ns, done, now.wall_ns)
        self._time_run(record, now, 0.0)
        attributes = {"k8s.pod.name": pod.view.name, "k8s.node.name": node.name, "orrery.init_containers": str(done)}
        return [
            Trace("kubelet.start", pod.view.traceparent, times.acknowledged_ns, now.wall_ns, attributes),
            *self._say_running(record),
        ]

    def _say_running(self, record: _Record) -> list[Action]:
        if record.stage is not Stage.RUNNING:
            return []
        return [
            self._write(record, status.running_status(record.pod, record.times, record.node.host_ip, record.pod_ip))
        ]

    def _time_run(self, record: _Record, now: Instant, ran_seconds: float) -> None:
        view = record.pod.view
        seconds = self._durations.run(record.pod.key, view.run_seconds, view.spec.restart_policy)
        if seconds is not None:
            self._set_timer(record, now, max(0.0, seconds - ran_seconds))

    def _succeed(self, record: _Record, now: Instant) -> list[Action]:
        times = record.times
        record.times = StageTimes(
            times.acknowledged_ns, times.init_started_ns, times.inits_done, times.running_ns, now.wall_ns
        )
        record.stage = Stage.FINISHED
        self._release(record)
        return [
            self._write(record, status.succeeded_status(record.pod, record.times, record.node.host_ip, record.pod_ip))
        ]

    def _stopped(self, record: _Record) -> list[Action]:
        self._release(record)
        if record.gone:
            del self._orphans[record.pod.view.uid]
            return []
        if record.pod.view.finished and not record.pod.view.deleting:
            record.stage = Stage.FINISHED
            return []
        return [self._remove(record)]

    # What is held

    def _hold(self, record: _Record) -> None:
        record.holding = holding_of(record.pod.view)
        record.node.usage.take(record.holding)

    def _release(self, record: _Record) -> None:
        if record.holding is None:
            return
        record.node.usage.give_back(record.holding)
        record.holding = None
        self._addresses.give_back(record.pod_ip)

    def _write(self, record: _Record, patch: status.Status) -> WriteStatus:
        view = record.pod.view
        return WriteStatus(view.namespace, view.name, view.uid, patch)
