"""The kubelets of a fleet: what the core decides, done through the API server.

One process plays thousands of machines over few streams: one watch for all nodes labelled orrery.dev/simulated=true (its
own fleet, which it registers, and those that others made), one for all bound pods, batches for every write. Everything it
knows it can read again: killed at any instruction and started anew, it lists, adopts what runs and goes on.

It reaches network, clock and chance only through what it is given.
"""

import asyncio
import random
from collections.abc import Sequence

from kubelet_sim.alarm import Alarm
from kubelet_sim.core.addresses import host_address
from kubelet_sim.core.durations import Durations
from kubelet_sim.core.events import Action, Event, Instant, NodeGone, NodeSeen, PodGone, PodSeen, Settle, Trace
from kubelet_sim.core.machine import KubeletMachine
from kubelet_sim.core.pods import KubeletPod
from kubelet_sim.core.shapes import Machine
from kubelet_sim.heartbeats import Heartbeats
from kubelet_sim.objects import PlayedNode, PodReader, node_message, read_node
from kubelet_sim.settings import KubeletSettings
from kubelet_sim.writer import PodWriter
from protos.orrery.v1.api_pb2 import Operation, WriteRequest
from services.client.api import ApiClient
from services.client.backoff import Backoff
from services.client.informer import Informer
from services.model.clock import Clock
from services.model.errors import ApiError
from services.model.names import LABEL_SIMULATED
from services.runtime.logging import Logger, silent
from services.runtime.sampling import sampling_rules
from services.runtime.telemetry import record_span
from services.wire.topology import topology_message

# Timers that fall due within this time are served together.
TIMER_SECONDS_MIN = 0.01
REGISTER_MACHINES_A_MESSAGE = 50


class KubeletShell:
    """`run` plays the fleet until it is cancelled. `machines`: those to register, besides the nodes to adopt."""

    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        settings: KubeletSettings,
        rng: random.Random,
        *,
        machines: Sequence[Machine] = (),
        log: Logger | None = None,
    ) -> None:
        self.core = KubeletMachine(Durations(settings.seed, settings.speed))
        self.ready = asyncio.Event()
        self._api = api
        self._clock = clock
        self._machines = machines
        self._rng = rng
        self._log = log or silent()
        self._alarm = Alarm(clock)
        self._rules = sampling_rules(settings)
        self._reader = PodReader()
        self.nodes: Informer[PlayedNode] = Informer(
            api,
            clock,
            "nodes",
            read_node,
            self._on_node,
            rng=rng,
            label_selector=f"{LABEL_SIMULATED}=true",
            on_batch=self._settle,
            log=self._log,
        )
        self.pods: Informer[KubeletPod] = Informer(
            api,
            clock,
            "pods",
            self._reader.read,
            self._on_pod,
            rng=rng,
            field_selector="spec.nodeName!=",
            on_batch=self._settle,
            log=self._log,
        )
        self.writer = PodWriter(api, clock, Backoff(rng), self._log)
        self.heartbeats = Heartbeats(
            api,
            clock,
            self.nodes.cache,
            self._log,
            lease_duration_seconds=settings.lease_duration_seconds,
            renew_seconds=settings.lease_renew_seconds,
        )

    async def run(self) -> None:
        """Ends only by cancellation, or by a fault that is our own."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.nodes.run())
            tasks.create_task(self.pods.run())
            tasks.create_task(self.writer.run())
            tasks.create_task(self.heartbeats.run())
            tasks.create_task(self._run_timers())
            await self._register()
            await self.nodes.wait_synced()
            await self.pods.wait_synced()
            self.ready.set()
            self._log.info("fleet_ready", registered=len(self._machines), nodes=len(self.nodes.cache))

    async def _register(self) -> None:
        """Creates Node and NodeTopology of each machine of the fleet, until all are there. Those that exist are left."""
        backoff = Backoff(self._rng)
        left = list(self._machines)
        while left:
            part = left[:REGISTER_MACHINES_A_MESSAGE]
            now_ns = self._clock.wall_ns()
            try:
                results = await self._api.batch([item for machine in part for item in _creations(machine, now_ns)])
            except ApiError as error:
                self._log.warning("register_retries", count=len(left), reason=str(error))
                await self._clock.sleep(backoff.next_seconds())
                continue
            failed = []
            for index, machine in enumerate(part):
                refusals = [
                    result.status
                    for result in results[2 * index : 2 * index + 2]
                    if not result.HasField("done") and result.status.reason != "AlreadyExists"
                ]
                if refusals:
                    failed.append(machine)
                    self._log.warning("register_refused", node=machine.node.name, reason=refusals[0].message)
            left = [*left[len(part) :], *failed]
            if failed:
                await self._clock.sleep(backoff.next_seconds())

    async def _run_timers(self) -> None:
        while True:
            due = self.core.next_due
            if due is None:
                await self._alarm.wait()
                continue
            await self._alarm.wait(max(TIMER_SECONDS_MIN, due - self._clock.monotonic()))
            if (due := self.core.next_due) is not None and due <= self._clock.monotonic():
                self._settle()

    # What informers call

    def _on_node(self, key: str, _old: PlayedNode | None, new: PlayedNode | None) -> None:
        if new is None:
            self._step(NodeGone(key))
        else:
            self._step(NodeSeen(key, new.view.labels, new.view.allocatable, new.address))

    def _on_pod(self, key: str, old: KubeletPod | None, new: KubeletPod | None) -> None:
        if old is not None and (new is None or new.view.uid != old.view.uid):
            self.writer.forget(old.view.uid)
        if new is not None:
            self._step(PodSeen(new, own=self.writer.is_own(new.view.uid, new.view.resource_version)))
        elif old is not None:
            self._step(PodGone(key, old.node_name))

    def _settle(self) -> None:
        """Nothing is admitted before all nodes and pods are known: what runs already has to be counted first."""
        if self.nodes.synced and self.pods.synced:
            self._step(Settle())

    def _step(self, event: Event) -> None:
        before = self.core.next_due
        for action in self.core.step(event, Instant(self._clock.monotonic(), self._clock.wall_ns())):
            self._perform(action)
        after = self.core.next_due
        if after is not None and (before is None or after < before):
            self._alarm.ring()

    def _perform(self, action: Action) -> None:
        if not isinstance(action, Trace):
            self.writer.put(action)
            return
        parent = self._rules.keep(
            action.parent, failed=bool(action.error), seconds=(action.end_ns - action.start_ns) / 1e9
        )
        record_span(
            action.name,
            parent=parent,
            start_ns=action.start_ns,
            end_ns=action.end_ns,
            attributes=action.attributes,
            error=action.error,
        )
        if action.error:
            self._log.info("pod_refused", pod=action.attributes.get("k8s.pod.name", ""), reason=action.error)


def _creations(machine: Machine, now_ns: int) -> list[Operation]:
    node = node_message(machine.node, host_address(machine.node.name), now_ns)
    topology = topology_message(machine.topology)
    return [
        Operation(create=WriteRequest(resource="nodes", value=node.SerializeToString())),
        Operation(create=WriteRequest(resource="nodetopologies", value=topology.SerializeToString())),
    ]
