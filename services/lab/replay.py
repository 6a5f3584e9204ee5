"""`orrery replay`: the openb trace into a running mesh, and what became of it.

Machines are created and awaited, then the pods, all at once and in the order of the file, as Pod objects that run until
they are deleted. Meanwhile an informer follows every pod. The replay ends when each is bound, or when those that are not
have been called unschedulable and everything rests: the leading scheduler has an empty queue and nothing in flight, and
nothing has changed for a while. Servers and schedulers may be killed at any time; names make every step repeatable.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from protos.orrery.v1 import node_pb2
from protos.orrery.v1.pod_pb2 import PodStatus
from services.client.informer import Informer
from services.lab.bulk import BulkResult, create_all
from services.lab.connect import Session, patiently, scheduler_status
from services.lab.errors import LabError
from services.lab.openb import TraceNode, TracePod
from services.lab.trace_objects import (
    LABEL_PART_OF,
    PART_OF,
    TRACE_NODE_SELECTOR,
    create,
    machine,
    node_operations,
    pod_message,
)
from services.model.devices import MILLI_WHOLE
from services.runtime.telemetry import traceparent_of, tracer
from services.wire.metadata import object_key, read_envelope

POLL_SECONDS = 0.25
READY_STALL_SECONDS_MAX = 60.0
# Nothing changed for this long, by the scheduler's own account too: it is over.
QUIET_SECONDS = 2.0
QUIET_UNTOLD_SECONDS = 10.0
# Nothing changed for this long, whatever the schedulers say: it is over, and something is wrong.
STALL_SECONDS_MAX = 60.0

STAGES = ("machines registered", "machines ready", "pods created", "pods placed")

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class PodState:
    """What the replay follows of a pod."""

    node: str
    gpu_milli: int
    unschedulable: bool
    phase: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """`seconds` from the first pod's creation to the last change; `stalled`: it rests, but not as it should."""

    nodes: int
    pods: int
    placed: int
    running: int
    pending: int
    unschedulable: int
    gpu_milli_allocated: int
    gpu_milli_total: int
    gpu_milli_wanted: int
    seconds: float
    resubmitted: int
    existed: int
    stalled: bool

    @property
    def pods_per_second(self) -> float:
        return self.placed / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class _Tracker:
    """The pods of this replay as the informer tells them; `changed_at` is when one of them last moved."""

    names: frozenset[str]
    placed: int = 0
    unschedulable: int = 0
    running: int = 0
    gpu_milli: int = 0
    seen: int = 0
    changed_at: float = 0.0
    moves: int = 0
    now: Callable[[], float] = field(default=lambda: 0.0)

    def on_event(self, key: str, old: PodState | None, new: PodState | None) -> None:
        if key not in self.names:
            return
        for state, sign in ((old, -1), (new, 1)):
            if state is not None:
                self.seen += sign
                self.placed += sign * bool(state.node)
                self.unschedulable += sign * (state.unschedulable and not state.node)
                self.running += sign * (state.phase == "Running")
                self.gpu_milli += sign * state.gpu_milli
        if old is None or new is None or (old.node, old.unschedulable) != (new.node, new.unschedulable):
            self.moves += 1
            self.changed_at = self.now()


def pod_state(value: bytes, _resource_version: str) -> PodState:
    envelope = read_envelope(value)
    status = PodStatus.FromString(envelope.status)
    scheduled = next((item for item in status.conditions if item.type == "PodScheduled"), None)
    return PodState(
        node=envelope.placed.node_name,
        gpu_milli=sum(share.milli for share in envelope.placed.devices),
        unschedulable=scheduled is not None and scheduled.status == "False" and scheduled.reason == "Unschedulable",
        phase=status.phase,
    )


class Replay:
    """One replay. `progress(what, done, total)` is called often; `what` is one of STAGES."""

    def __init__(
        self, client: Session, nodes: Sequence[TraceNode], pods: Sequence[TracePod], namespace: str, progress: Progress
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._pods = pods
        self._namespace = namespace
        self._progress = progress
        self._tracker = _Tracker(frozenset(f"{namespace}/{pod.name}" for pod in pods), now=client.clock.monotonic)

    async def run(self) -> ReplayReport:
        """Raises LabError when machines do not become ready or objects are refused."""
        others = await self._create_machines()
        informer: Informer[PodState] = Informer(
            self._client.api,
            self._client.clock,
            "pods",
            pod_state,
            self._tracker.on_event,
            rng=self._client.rng,
            namespace=self._namespace,
            label_selector=f"{LABEL_PART_OF}={PART_OF}",
        )
        following = asyncio.ensure_future(informer.run())
        try:
            await informer.wait_synced()
            began = self._tracker.changed_at = self._client.clock.monotonic()
            selector: Mapping[str, str] = TRACE_NODE_SELECTOR if others else MappingProxyType({})
            showing = asyncio.ensure_future(self._show())
            try:
                created = await self._create_pods(selector)
                stalled = await self._wait_rest()
            finally:
                showing.cancel()
            return self._report(created, began, stalled=stalled)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _create_machines(self) -> bool:
        """Creates the trace's machines and waits until they are ready; returns whether the mesh has others too."""
        made = [machine(row) for row in self._nodes]
        pairs = [node_operations(each) for each in made]
        done = 0

        def note(count: int) -> None:
            nonlocal done
            done += count
            self._progress("machines registered", done // 2, len(made))

        # Nodes first: an unknown node's topology would only wait for it.
        for at in (0, 1):
            await create_all(self._client, [pair[at] for pair in pairs], note)
        names = {each.node.name for each in made}
        stalled_since, last = self._client.clock.monotonic(), -1
        while True:
            items, _ = await patiently(
                lambda: self._client.api.list("nodes", resource_version="0"), self._client.clock, self._client.rng
            )
            ready = sum(object_key(item.value) in names and _ready(item.value) for item in items)
            self._progress("machines ready", ready, len(made))
            if ready >= len(names):
                return len(items) > len(names)
            now = self._client.clock.monotonic()
            if ready != last:
                stalled_since, last = now, ready
            elif now - stalled_since > READY_STALL_SECONDS_MAX:
                raise LabError(
                    f"{len(names) - ready} of {len(names)} machines are not ready; does kubelet-sim run? "
                    "Look with: orrery status"
                )
            await self._client.clock.sleep(POLL_SECONDS)

    async def _create_pods(self, selector: Mapping[str, str]) -> BulkResult:
        operations = []
        for row in self._pods:
            # Each pod begins its own trace, not the batch in which it happens to ride; the span marks the beginning.
            span = tracer().start_span(f"replay pod/{row.name}", context=Context(), kind=SpanKind.CLIENT)
            span.end()
            pod = pod_message(row, self._namespace, node_selector=selector, traceparent=traceparent_of(span))
            operations.append(create("pods", pod))
        done = 0

        def note(count: int) -> None:
            nonlocal done
            done += count
            self._progress("pods created", done, len(self._pods))

        return await create_all(self._client, operations, note)

    async def _show(self) -> None:
        while True:
            self._progress("pods placed", self._tracker.placed, len(self._pods))
            await self._client.clock.sleep(POLL_SECONDS)

    async def _wait_rest(self) -> bool:
        """Returns once all pods are bound or everything rests; True when it rests without the schedulers saying so."""
        clock, tracker, total = self._client.clock, self._tracker, len(self._pods)
        while tracker.placed < total:
            still = clock.monotonic() - tracker.changed_at
            # A condition may be late or lost with a killed scheduler; what the leader's queue says counts then.
            told = tracker.placed + tracker.unschedulable >= total
            if still > (QUIET_SECONDS if told else QUIET_UNTOLD_SECONDS) and await self._queue_rests():
                return False
            if still > STALL_SECONDS_MAX:
                return True
            await clock.sleep(POLL_SECONDS)
        return False

    async def _queue_rests(self) -> bool:
        """Whether the leader has nothing to try and nothing in flight, twice with a pause between."""
        moves = self._tracker.moves
        for _ in range(2):
            statuses = [
                await scheduler_status(self._client.transport, process)
                for process in self._client.record.of("scheduler")
            ]
            leader = next((status for status in statuses if status is not None and status.leader), None)
            if leader is None or not leader.synced or leader.queue_active or leader.queue_backoff or leader.assumed:
                return False
            await self._client.clock.sleep(POLL_SECONDS * 2)
        return self._tracker.moves == moves

    def _report(self, created: BulkResult, began: float, *, stalled: bool) -> ReplayReport:
        tracker = self._tracker
        self._progress("pods placed", tracker.placed, len(self._pods))
        return ReplayReport(
            nodes=len(self._nodes),
            pods=len(self._pods),
            placed=tracker.placed,
            running=tracker.running,
            pending=len(self._pods) - tracker.placed,
            unschedulable=tracker.unschedulable,
            gpu_milli_allocated=tracker.gpu_milli,
            gpu_milli_total=sum(node.gpus for node in self._nodes) * MILLI_WHOLE,
            gpu_milli_wanted=sum(pod.gpu_milli_total for pod in self._pods),
            seconds=max(0.0, tracker.changed_at - began),
            resubmitted=created.resubmitted,
            existed=created.existed,
            stalled=stalled,
        )


def _ready(value: bytes) -> bool:
    node = node_pb2.Node.FromString(value)
    return any(item.type == "Ready" and item.status == "True" for item in node.status.conditions)
