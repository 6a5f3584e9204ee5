"""The scheduler's shell: informers and binds in, the machine in the middle, binds, reports and spans out.

Built from an ApiClient, a Clock and a random generator alone. One task steps the machine; everything else only puts
events into its inbox. A standby does the same without trying any pod, so that it takes over with a warm cache and queue.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Mapping
from typing import TypeVar

from protos.orrery.v1.api_pb2 import BindResult, Fence
from protos.orrery.v1.scheduler_pb2 import PluginFaults, SchedulerStatus
from scheduler.attempts import AttemptLog
from scheduler.binding import BindQueue, Pending
from scheduler.configuration.types import SchedulerConfiguration
from scheduler.core.faults import PluginFault
from scheduler.core.machine import (
    Attempted,
    Bind,
    BindDone,
    BindVerdict,
    Continue,
    Event,
    Evict,
    LeadershipChanged,
    Machine,
    NamespaceChanged,
    NodeChanged,
    Nominate,
    PluginFailed,
    PodChanged,
    ServiceChanged,
    Tick,
    TopologyChanged,
    WakeAt,
)
from scheduler.core.profile import Profile
from scheduler.evicting import EvictionQueue
from scheduler.plugins.registry import default_profile
from scheduler.reloading import ConfigurationKeeper, profiles_changed
from scheduler.reporting import Reporter
from scheduler.settings import SchedulerSettings
from scheduler.tracing import Laps, record_attempt, trace_id_of
from services.client.api import ApiClient
from services.client.election import LeaderElector
from services.client.informer import Decode, Informer, OnEvent
from services.model.clock import Clock
from services.model.cluster import ServiceView
from services.model.node import NodeView, TopologyView
from services.model.pod import PodView
from services.runtime.logging import Logger, silent
from services.runtime.sampling import sampling_rules
from services.wire.cluster import namespace_labels, service_view
from services.wire.node import node_view
from services.wire.pod import PodDecoder
from services.wire.topology import topology_view

# How long, and how often at most, pods are tried before the event loop gets to its other work: lease renewals among it.
TURN_SECONDS_MAX = 0.01
ATTEMPTS_A_TURN = 16


T = TypeVar("T")
Informers = tuple[
    Informer[NodeView],
    Informer[TopologyView],
    Informer[Mapping[str, str]],
    Informer[ServiceView],
    Informer[PodView],
]


class SchedulerShell:
    """`identity` must be unique for each start of a process."""

    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        settings: SchedulerSettings,
        rng: random.Random,
        identity: str,
        log: Logger | None = None,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._log = log or silent()
        self._identity = identity
        self._laps = Laps(clock.wall_ns)
        self._rules = sampling_rules(settings)
        self.configuration = ConfigurationKeeper(settings.config, clock, self._log, self._on_configuration)
        profiles = self._first_profiles(settings)
        self.machine = Machine(list(profiles.values()), settings.seed, self._laps.begin)
        # The file's backoff times.
        current = self.configuration.current
        self.machine.queue.reconfigure(profiles, current.backoff_first_seconds, current.backoff_seconds_max, 0.0)
        self.attempts = AttemptLog(settings.name)
        # How often each plugin did wrong.
        self._faults: Counter[str] = Counter()
        self._inbox: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._wake_at: float | None = None
        # Trace of the attempt that each bind in flight came from.
        namespace, _, lease = settings.lease.partition("/")
        self.elector = LeaderElector(
            api,
            clock,
            namespace=namespace,
            name=lease,
            identity=identity,
            settings=settings.election(),
            rng=rng,
            on_started_leading=self._on_started_leading,
            on_stopped_leading=lambda: self._put(LeadershipChanged(leading=False)),
            log=self._log,
        )
        self._binds = BindQueue(
            api, clock, rng, self._log, self._on_bind_done, self.elector.lost, profiles, self._rules, self._on_fault
        )
        self._evictions = EvictionQueue(api, clock, rng, self._log, self._put)
        self._reporter = Reporter(api, clock, rng, settings.name, self._log, lambda: self.elector.fence)
        self._informers = self._make_informers(api, rng)

    def _first_profiles(self, settings: SchedulerSettings) -> dict[str, Profile]:
        if not settings.config:
            return {settings.scheduler_name: default_profile(settings.scheduler_name)}
        return {profile.scheduler_name: profile for profile in profiles_changed(self.configuration.current).profiles}

    def _on_configuration(self, configuration: SchedulerConfiguration) -> None:
        """Another file is in force: pods of its new profiles, which were not ours so far, come in from the cache."""
        changed = profiles_changed(configuration)
        self._put(changed)
        known = set(self._binds.profiles)
        self._binds.profiles = {profile.scheduler_name: profile for profile in changed.profiles}
        new = set(self._binds.profiles) - known
        for pod in list(self._informers[-1].cache.values()):
            if pod.spec.scheduler_name in new:
                self._put(PodChanged(None, pod))

    def _make_informers(self, api: ApiClient, rng: random.Random) -> Informers:
        """Pods last: what they are placed by is known when they come, as far as order can do that."""

        def informer(resource: str, decode: Decode[T], on_event: OnEvent[T]) -> Informer[T]:
            wake = self._wake.set
            return Informer(api, self._clock, resource, decode, on_event, rng=rng, on_batch=wake, log=self._log)

        return (
            informer("nodes", node_view, self._on_node),
            informer("nodetopologies", lambda value, _version: topology_view(value), self._on_topology),
            informer("namespaces", namespace_labels, self._on_namespace),
            informer("services", service_view, self._on_service),
            informer("pods", PodDecoder().view, self._on_pod),
        )

    @property
    def synced(self) -> bool:
        """All informers have listed once."""
        return all(informer.synced for informer in self._informers)

    # Inbox.

    def _put(self, event: Event) -> None:
        self._inbox.append(event)
        self._wake.set()

    def _on_started_leading(self, _fence: Fence) -> None:
        self._put(LeadershipChanged(leading=True))

    def _on_node(self, _key: str, old: NodeView | None, new: NodeView | None) -> None:
        self._inbox.append(NodeChanged(old, new))

    def _on_topology(self, key: str, _old: TopologyView | None, new: TopologyView | None) -> None:
        self._inbox.append(TopologyChanged(key, new))

    def _on_namespace(self, key: str, _old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> None:
        self._inbox.append(NamespaceChanged(key, new))

    def _on_service(self, key: str, _old: ServiceView | None, new: ServiceView | None) -> None:
        namespace, _, name = key.partition("/")
        self._inbox.append(ServiceChanged(namespace, name, new))

    def _on_pod(self, _key: str, old: PodView | None, new: PodView | None) -> None:
        self._inbox.append(PodChanged(old, new))

    def _on_bind_done(self, pending: Pending, result: BindResult, done: BindDone) -> None:
        pod = pending.bind.pod
        if done.verdict is BindVerdict.BOUND:
            self._reporter.report(
                pod, pending.bind.node_name, f"Successfully assigned {pod.key} to {pending.bind.node_name}"
            )
        else:
            self.attempts.settle(pod.key, pod.uid, f"Bind{done.why.title()}", result.message)
        # Also when the bind queue was full: there is room again.
        self._put(done)

    # Work.

    async def run(self) -> None:
        """Works until it is cancelled; then gives the lease back."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers:
                tasks.create_task(informer.run())
            tasks.create_task(self._binds.run())
            tasks.create_task(self._evictions.run())
            tasks.create_task(self._reporter.run())
            tasks.create_task(self._step_for_ever())
            tasks.create_task(self.configuration.run())
            await asyncio.gather(*(informer.wait_synced() for informer in self._informers))
            await self.elector.run()

    async def _step_for_ever(self) -> None:
        while True:
            self._wake.clear()
            turn_ends = self._clock.monotonic() + TURN_SECONDS_MAX
            for _ in range(ATTEMPTS_A_TURN):
                self._read_inbox(turn_ends)
                if not self._inbox and (self._binds.full or not self._attempt()):
                    await self._wait()
                    break
                if self._clock.monotonic() >= turn_ends:
                    break
            await asyncio.sleep(0)

    def _read_inbox(self, turn_ends: float) -> None:
        while self._inbox and self._clock.monotonic() <= turn_ends:
            for action in self.machine.step(self._inbox.popleft(), self._clock.monotonic()):
                if isinstance(action, PluginFailed):
                    self._on_fault(action.pod, action.fault)

    def _on_fault(self, pod: PodView, fault: PluginFault) -> None:
        """Outside of an attempt, which tells its own."""
        self._faults[fault.plugin] += 1
        self._log.error("plugin_failed", plugin=fault.plugin, pod=pod.key, reason=str(fault))
        self._reporter.report(pod, "", str(fault), fault=True)

    def _attempt(self) -> bool:
        """At most one attempt; whether there may be more to do."""
        self._wake_at = None
        more = False
        fence = self.elector.fence
        actions = self.machine.step(Tick(), self._clock.monotonic()) if fence is not None else []
        traceparent = ""
        for action in actions:
            match action:
                case Attempted():
                    traceparent = self._on_attempted(action)
                case Bind():
                    assert fence is not None
                    self._binds.submit(action, fence, traceparent)
                case Nominate() | Evict():
                    assert fence is not None
                    self._evictions.submit(action, fence)
                    for victim in action.victims if isinstance(action, Evict) else ():
                        by = f"Preempted by pod {action.pod.uid} on node {action.node_name}"
                        self._reporter.report(victim, action.node_name, by, preempted=True)
                case PluginFailed():
                    self._on_fault(action.pod, action.fault)
                case WakeAt(at):
                    self._wake_at = at
                case Continue():
                    more = True
        return more

    def _on_attempted(self, attempted: Attempted) -> str:
        end_ns, now = self._clock.wall_ns(), self._clock.monotonic()
        fence = self.elector.fence
        traceparent = record_attempt(
            attempted,
            self._laps,
            end_ns,
            lambda at: end_ns - int((now - at) * 1e9),
            self._rules,
            {"orrery.scheduler": self._settings.name, "orrery.fencing_token": fence.token if fence is not None else 0},
        )
        laps = self._laps.durations()
        self.attempts.add(attempted, self._laps.start_ns, laps, trace_id_of(attempted.pod.traceparent))
        decision = attempted.decision
        if not decision.node_name:
            self._reporter.report(attempted.pod, "", decision.error or decision.message)
        if decision.faulty:
            self._faults[decision.faulty] += 1
            self._log.error("plugin_failed", plugin=decision.faulty, pod=attempted.pod.key, reason=decision.error)
        elif decision.error:
            self._log.error("attempt_failed", pod=attempted.pod.key, reason=decision.error)
        return traceparent

    async def _wait(self) -> None:
        """Until something arrives, or until the queue wants to be looked at."""
        if self._wake_at is None:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, self._wake_at - self._clock.monotonic())):
                await self._wake.wait()
        except TimeoutError:
            return

    def status(self) -> SchedulerStatus:
        """For SchedulerInspection."""
        fence, queue = self.elector.fence, self.machine.queue
        return SchedulerStatus(
            name=self._settings.name,
            identity=self._identity,
            leader=fence is not None,
            holder=self.elector.holder,
            fencing_token=fence.token if fence is not None else 0,
            queue_active=queue.length("active"),
            queue_backoff=queue.length("backoff"),
            queue_unschedulable=queue.length("unschedulable"),
            queue_gated=queue.length("gated"),
            assumed=self.machine.assumed,
            attempts=self.machine.attempts,
            bound=self.machine.bound,
            moved_by_flush=queue.moved_by_flush,
            nodes=self.machine.nodes.count,
            pods=self.machine.pods,
            synced=self.synced,
            configuration_error=self.configuration.error,
            configuration_hash=self.configuration.hash,
            plugin_faults=[PluginFaults(plugin=name, count=count) for name, count in sorted(self._faults.items())],
        )
