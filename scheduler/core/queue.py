"""The scheduling queue: active, backoff, unschedulable, gated.

A pod that failed waits until an event that one of the plugins that rejected it says may help; then it goes to the active
queue, by way of backoff while its backoff lasts (1 s doubling to 10 s: Kubernetes' defaults). Events that arrive while a
pod is being tried or bound are kept and replayed when that fails, so that none is missed. A flush of pods that have
waited FLUSH_SECONDS exists only as a detector: a pod that it finds schedulable was asleep by mistake, and is counted.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler.core.faults import PluginFault, check_answer, fault_of
from scheduler.core.framework import ClusterEvent, EventKind
from scheduler.core.profile import Profile
from scheduler.core.status import Status
from services.model.pod import PodView

BACKOFF_FIRST_SECONDS = 1.0
BACKOFF_SECONDS_MAX = 10.0
FLUSH_SECONDS = 300.0
# Events kept for the pods in flight; a pod that misses some of them is retried without asking.
EVENTS_KEPT_MAX = 4096


@dataclass(slots=True)
class Queued:
    """A pod on its way through the queue. `place`: which queue it is in, or "flight" while it is tried or bound."""

    pod: PodView
    added_at: float
    place: str = ""
    attempts: int = 0
    backoff_until: float = 0.0
    woken_by: str = "PodAdd"
    enqueued_at: float = 0.0
    failed_plugins: frozenset[str] = frozenset()
    # While it is unschedulable: the plugins under whose names it sleeps.
    sleeps_for: tuple[str, ...] = ()
    waiting_since: float = 0.0
    # (time, what) of each move, for the span of the wait.
    moves: list[tuple[float, str]] = field(default_factory=list)
    # The pod's own updates while it is in flight, and where the log of all events stood when that began.
    own_events: list[ClusterEvent] = field(default_factory=list)
    log_from: int = 0
    flushed: bool = False


class SchedulingQueue:
    """Queues of one scheduler. `profiles`: by schedulerName; pods of others are not ours. `faults` gets what plugins did
    wrong, each with the pod.
    """

    def __init__(self, profiles: dict[str, Profile], faults: list[tuple[PodView, PluginFault]] | None = None) -> None:
        self._profiles = profiles
        self._faults = faults if faults is not None else []
        self._backoff_first = BACKOFF_FIRST_SECONDS
        self._backoff_max = BACKOFF_SECONDS_MAX
        self._pods: dict[str, Queued] = {}
        self._active: list[tuple[tuple[float, ...], int, str]] = []
        self._backoff: list[tuple[float, int, str]] = []
        self._counts = {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 0, "flight": 0}
        self._unschedulable: dict[str, None] = {}
        self._flight: dict[str, None] = {}
        # The unschedulable ones by the plugins that rejected them; "" for those whom none did.
        self._asleep: dict[str, dict[str, None]] = {}
        # What happened while pods are in flight; `_log_begin` is the number of the first event in it.
        self._log: list[ClusterEvent] = []
        self._log_begin = 0
        self._sequence = 0
        self.moved_by_flush = 0

    def length(self, place: str) -> int:
        """How many pods are in "active", "backoff", "unschedulable", "gated" or "flight"."""
        return self._counts[place]

    def get(self, uid: str) -> Queued | None:
        return self._pods.get(uid)

    def profile_of(self, pod: PodView) -> Profile:
        return self._profiles[pod.spec.scheduler_name]

    def is_ours(self, pod: PodView) -> bool:
        return pod.spec.scheduler_name in self._profiles

    def reconfigure(
        self, profiles: dict[str, Profile], backoff_first: float, backoff_max: float, now: float
    ) -> list[PodView]:
        """Other profiles from now on. Pods of those that are gone leave, and are returned; pods that waited for the old rules
        are tried by the new ones; who stood in line keeps his place there, as far as the new order has it so.
        """
        self._profiles = profiles
        self._backoff_first, self._backoff_max = backoff_first, backoff_max
        gone = [queued.pod for queued in self._pods.values() if not self.is_ours(queued.pod)]
        for pod in gone:
            self.remove(pod.uid)
        in_line = dict.fromkeys(uid for _, _, uid in sorted(self._active) if self._is_at(uid, "active"))
        self._active = []
        for uid in in_line:
            if self._gate(self._pods[uid], now):
                self._push_active(self._pods[uid])
        for uid, queued in list(self._pods.items()):
            if queued.place in ("unschedulable", "gated") and uid not in in_line:
                queued.failed_plugins = frozenset()
                self._enqueue(queued, now, "ConfigurationChange")
        return gone

    def _is_at(self, uid: str, place: str) -> bool:
        queued = self._pods.get(uid)
        return queued is not None and queued.place == place

    # Moves.

    def _move(self, queued: Queued, place: str, now: float, why: str) -> None:
        uid = queued.pod.uid
        if queued.place:
            self._leave(queued)
        queued.place = place
        queued.woken_by = why if place == "active" else queued.woken_by
        queued.moves.append((now, f"{place}: {why}"))
        self._counts[place] += 1
        self._sequence += 1
        if place == "active":
            queued.enqueued_at = now
            self._push_active(queued)
        elif place == "backoff":
            heapq.heappush(self._backoff, (queued.backoff_until, self._sequence, uid))
        elif place == "unschedulable":
            queued.waiting_since = now
            self._unschedulable[uid] = None
            queued.sleeps_for = tuple(sorted(queued.failed_plugins)) or ("",)
            for name in queued.sleeps_for:
                self._asleep.setdefault(name, {})[uid] = None
        elif place == "flight":
            self._flight[uid] = None

    def _push_active(self, queued: Queued) -> None:
        self._sequence += 1
        heapq.heappush(self._active, (self._sort_key(queued), self._sequence, queued.pod.uid))

    def _sort_key(self, queued: Queued) -> tuple[float, ...]:
        """Where the plugin has none, priority and age decide, as without it."""
        pod = queued.pod
        plugin = self.profile_of(pod).queue_sort
        try:
            key = plugin.sort_key(pod, queued.added_at)
            check_answer(plugin.name, "QueueSort", key, tuple)
            if not any(map(math.isnan, key)):
                return key
            fault = PluginFault(plugin.name, f"answered {key} at QueueSort, which has no order")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a key that is no tuple of numbers raises here, not there
            fault = fault_of(error) or PluginFault(plugin.name, f"answered no numbers at QueueSort: {error}")
        self._faults.append((pod, fault))
        return (-pod.spec.priority, queued.added_at)

    def _leave(self, queued: Queued) -> None:
        """Takes a pod out of the queue that it is in."""
        uid = queued.pod.uid
        self._counts[queued.place] -= 1
        if queued.place == "unschedulable":
            del self._unschedulable[uid]
            for name in queued.sleeps_for:
                sleeping = self._asleep[name]
                del sleeping[uid]
                if not sleeping:
                    del self._asleep[name]
        elif queued.place == "flight":
            del self._flight[uid]
            if not self._flight:
                self._log_begin += len(self._log)
                self._log.clear()

    def add(self, pod: PodView, now: float) -> None:
        """A pod that is to be scheduled; one that is known is updated."""
        queued = self._pods.get(pod.uid)
        if queued is not None:
            self.update(pod, now)
            return
        queued = Queued(pod, added_at=now)
        self._pods[pod.uid] = queued
        self._enqueue(queued, now, "PodAdd")

    def _gate(self, queued: Queued, now: float) -> bool:
        """Whether every PreEnqueue plugin lets the pod in; if not, it is gated. One that fails is asked again later."""
        for plugin in self.profile_of(queued.pod).pre_enqueue:
            try:
                status = plugin.pre_enqueue(queued.pod)
                check_answer(plugin.name, "PreEnqueue", status, Status)
            except (Exception, SystemExit) as error:
                fault = fault_of(error)
                if fault is None:
                    raise
                self._faults.append((queued.pod, fault))
                queued.backoff_until = now + self._backoff_max
                self._move(queued, "backoff", now, "PluginError")
                return False
            if not status.ok:
                queued.failed_plugins = frozenset((plugin.name,))
                self._move(queued, "gated", now, ", ".join(status.reasons))
                return False
        return True

    def _enqueue(self, queued: Queued, now: float, why: str) -> None:
        if not self._gate(queued, now):
            return
        if now < queued.backoff_until:
            self._move(queued, "backoff", now, why)
        else:
            self._move(queued, "active", now, why)

    def update(self, pod: PodView, now: float) -> None:
        """The pod itself changed: what may make it schedulable wakes it."""
        queued = self._pods[pod.uid]
        old, queued.pod = queued.pod, pod
        if old.spec is pod.spec and old.labels == pod.labels:
            return
        if queued.place == "gated" or queued.place == "unschedulable":
            self._enqueue(queued, now, EventKind.POD_CHANGED.value)
        elif queued.place == "flight":
            queued.own_events.append(ClusterEvent(EventKind.POD_CHANGED, pod=pod))

    def remove(self, uid: str) -> Queued | None:
        """The pod is gone, or placed: forget it."""
        queued = self._pods.pop(uid, None)
        if queued is not None:
            self._leave(queued)
        return queued

    def pop(self, now: float) -> Queued | None:
        """The next pod to try; it is in flight from now on."""
        self.tick(now)
        while self._active:
            _, _, uid = heapq.heappop(self._active)
            queued = self._pods.get(uid)
            if queued is not None and queued.place == "active":
                queued.attempts += 1
                queued.own_events.clear()
                queued.log_from = self._log_begin + len(self._log)
                self._move(queued, "flight", now, "attempt")
                return queued
        return None

    def failed(self, uid: str, failed_plugins: frozenset[str], now: float) -> None:
        """The attempt found no place: wait, unless an event since then may have made one."""
        queued = self._pods.get(uid)
        if queued is None:
            return
        queued.failed_plugins = failed_plugins
        queued.backoff_until = now + backoff_seconds(queued.attempts, self._backoff_first, self._backoff_max)
        events_lost = queued.log_from < self._log_begin
        since = self._log[max(0, queued.log_from - self._log_begin) :]
        missed = next((event for event in (*queued.own_events, *since) if self._wakes(event, queued)), None)
        if missed is not None or events_lost:
            self._move(queued, "backoff", now, missed.kind.value if missed is not None else "EventsOverflow")
        else:
            self._move(queued, "unschedulable", now, "no place")

    def retry(self, uid: str, now: float, why: str) -> None:
        """The attempt was lost to others, not to the cluster: back off and try again."""
        queued = self._pods.get(uid)
        if queued is not None:
            queued.backoff_until = now + backoff_seconds(queued.attempts, self._backoff_first, self._backoff_max)
            self._move(queued, "backoff", now, why)

    def tick(self, now: float) -> None:
        """Lets out what has backed off long enough, and looks for pods that sleep by mistake."""
        while self._backoff and self._backoff[0][0] <= now:
            _, _, uid = heapq.heappop(self._backoff)
            queued = self._pods.get(uid)
            if queued is not None and queued.place == "backoff" and queued.backoff_until <= now:
                self._enqueue(queued, now, _last_cause(queued))
        for uid in list(self._unschedulable):
            queued = self._pods[uid]
            if now - queued.waiting_since < FLUSH_SECONDS:
                break
            queued.flushed = True
            self._move(queued, "active", now, "Flush")

    def placed_after_flush(self, queued: Queued) -> None:
        """A flushed pod found a place: an event should have woken it."""
        if queued.flushed:
            self.moved_by_flush += 1

    def next_wake(self) -> float | None:
        """When `tick` will next have something to do; None for never."""
        times = [self._backoff[0][0]] if self._backoff else []
        oldest = next(iter(self._unschedulable), None)
        if oldest is not None:
            times.append(self._pods[oldest].waiting_since + FLUSH_SECONDS)
        return min(times, default=None)

    def on_event(self, event: ClusterEvent, now: float) -> None:
        """Wakes exactly the waiting pods that the event may help, and keeps it for those in flight."""
        if self._flight:
            self._log.append(event)
            if len(self._log) > EVENTS_KEPT_MAX:
                del self._log[: EVENTS_KEPT_MAX // 2]
                self._log_begin += EVENTS_KEPT_MAX // 2
        woken: dict[str, None] = {}
        for name, sleeping in self._asleep.items():
            if not name:
                # No plugin said no, there was no node to say it of: any event may change that.
                woken.update(sleeping)
            elif self._hears(name, event.kind):
                woken.update(dict.fromkeys(uid for uid in sleeping if self._asks(name, event, self._pods[uid].pod)))
        for uid in woken:
            self._enqueue(self._pods[uid], now, event.kind.value)

    def activate(self, uid: str, now: float, why: str) -> None:
        """Tries a waiting pod again, whatever had rejected it."""
        queued = self._pods.get(uid)
        if queued is not None and queued.place == "unschedulable":
            self._enqueue(queued, now, why)

    def _hears(self, name: str, kind: EventKind) -> bool:
        """Whether a plugin of this name wants to be asked about such events, in any profile."""
        for profile in self._profiles.values():
            plugin = profile.by_name.get(name)
            if plugin is None or plugin.events is None or kind in plugin.events:
                return True
        return False

    def _asks(self, name: str, event: ClusterEvent, pod: PodView) -> bool:
        """Whether the event may help the pod, by what the plugin says that rejected it; when in doubt, yes."""
        plugin = self.profile_of(pod).by_name.get(name)
        if plugin is None or (plugin.events is not None and event.kind not in plugin.events):
            return plugin is None
        try:
            return plugin.wakes(event, pod)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - plugins are anybody's code
            self._faults.append((pod, fault_of(error) or PluginFault(name, f"failed at a hint: {error}")))
            return True

    def _wakes(self, event: ClusterEvent, queued: Queued) -> bool:
        if not queued.failed_plugins:
            return True
        return any(self._asks(name, event, queued.pod) for name in sorted(queued.failed_plugins))

    def waiting(self) -> Iterable[Queued]:
        """All pods that wait for an event, for checkers."""
        return [self._pods[uid] for uid in self._unschedulable]


def _last_cause(queued: Queued) -> str:
    return queued.moves[-1][1].partition(": ")[2] if queued.moves else "Backoff"


def backoff_seconds(attempts: int, first: float = BACKOFF_FIRST_SECONDS, longest: float = BACKOFF_SECONDS_MAX) -> float:
    """`first` after the first attempt, doubling to `longest` (podInitialBackoffSeconds, podMaxBackoffSeconds)."""
    return min(longest, first * 2.0 ** min(max(1, attempts) - 1, 63))
