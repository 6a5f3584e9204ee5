"""What the demo does once its processes are healthy: await the machines and a leader, apply the manifests, follow the pods
until each runs or is called unschedulable, and ask why the last one waits.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from protos.orrery.v1.node_topology_pb2 import NodeTopology
from protos.orrery.v1.pod_pb2 import Pod
from protos.orrery.v1.scheduler_pb2 import ExplainRequest, SchedulingAttempt
from services.client.informer import Informer
from services.lab.connect import Session, explanations, leader, session
from services.lab.errors import LabError
from services.lab.objects import apply_all, read_sources
from services.lab.state import MeshFolder
from services.lab.supervisor import log_tail
from services.model.node import TopologyView
from services.wire.topology import project_topology

READY_SECONDS_MAX = 20.0
RUNNING_SECONDS_MAX = 25.0
POLL_SECONDS = 0.1
TELL_SECONDS = 0.4
NAMESPACE = "default"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PodRun:
    """One pod of the demo. `seconds` from the create call to the moment that its Running was seen; None: it waits.

    `attempts` are those of the schedulers, for a pod that waits.
    """

    pod: Pod
    seconds: float | None
    topology: TopologyView | None = None
    attempts: tuple[SchedulingAttempt, ...] = ()

    @property
    def name(self) -> str:
        return self.pod.metadata.name


@dataclass(slots=True)
class _Watched:
    """What was seen of the pods, by key."""

    pods: dict[str, Pod] = field(default_factory=dict)
    running_at: dict[str, float] = field(default_factory=dict)


class DemoCluster:
    """`say` is told each step."""

    def __init__(self, folder: MeshFolder, say: Say) -> None:
        self._folder = folder
        self._say = say

    async def play(self, examples: Path) -> list[PodRun]:
        """Raises LabError when the machines, a leader or the pods take too long, or a manifest is refused."""
        async with session(self._folder, traced=True) as client:
            await self._wait_machines(client)
            watched = _Watched()
            informer: Informer[Pod] = Informer(
                client.api,
                client.clock,
                "pods",
                lambda value, _version: Pod.FromString(value),
                lambda key, _old, new: self._note(client, watched, key, new),
                rng=client.rng,
                namespace=NAMESPACE,
            )
            following = asyncio.ensure_future(informer.run())
            try:
                await informer.wait_synced()
                began = await self._apply(client, examples)
                await self._wait_settled(client, watched, began)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            return [await self._run_of(client, watched, key, began[key]) for key in began]

    def _note(self, client: Session, watched: _Watched, key: str, pod: Pod | None) -> None:
        if pod is None:
            return
        watched.pods[key] = pod
        if pod.status.phase == "Running" and key not in watched.running_at:
            watched.running_at[key] = client.clock.monotonic()

    async def _wait_machines(self, client: Session) -> None:
        deadline = client.clock.monotonic() + READY_SECONDS_MAX
        wanted = sum(int(part.partition("=")[2]) for part in client.record.options.fleet.split(","))
        while True:
            topologies, _ = await client.api.list("nodetopologies")
            leading = await leader(client.transport, client.record.of("scheduler"))
            if len(topologies) >= wanted and leading is not None:
                gpus = sum(len(NodeTopology.FromString(item.value).spec.gpus) for item in topologies)
                self._say(f"{len(topologies)} machines with {gpus} GPUs have registered; {leading.name} leads")
                return
            if client.clock.monotonic() > deadline:
                late = "scheduler-0" if len(topologies) >= wanted else "kubelet-sim-0"
                raise LabError(
                    f"after {READY_SECONDS_MAX:.0f} s {len(topologies)} of {wanted} machines have registered and "
                    f"{leading.name if leading else 'no scheduler'} leads; the log of {late} ends with:\n"
                    f"{log_tail(self._folder.log_path(late))}"
                )
            await client.clock.sleep(POLL_SECONDS)

    async def _apply(self, client: Session, examples: Path) -> dict[str, float]:
        """Applies the manifests; returns when each pod's create call began, by key."""
        began: dict[str, float] = {}
        count, now = 0, client.clock.monotonic()
        async for outcome in apply_all(client, read_sources([str(examples)], None), NAMESPACE):
            if not outcome.ok:
                raise LabError(f"an example was refused: {outcome.text}")
            count += 1
            title = outcome.text.partition(" ")[0]
            if title.startswith("pod/"):
                began[f"{NAMESPACE}/{title.removeprefix('pod/')}"] = now
            now = client.clock.monotonic()
        self._say(f"applied {count} objects from {examples.name}/, {len(began)} pods among them")
        return began

    async def _wait_settled(self, client: Session, watched: _Watched, began: dict[str, float]) -> None:
        """Until every pod runs or is called unschedulable."""
        deadline = client.clock.monotonic() + RUNNING_SECONDS_MAX
        told_at, told = 0.0, 0
        while True:
            waiting = [key for key in began if key not in watched.running_at]
            running, now = len(began) - len(waiting), client.clock.monotonic()
            if running != told and now - told_at > TELL_SECONDS:
                self._say(f"{running} of {len(began)} pods run")
                told_at, told = now, running
            open_ends = [key for key in waiting if not _unschedulable(watched.pods.get(key))]
            if not open_ends:
                self._say(f"{running} of {len(began)} pods run; nothing else can")
                return
            if client.clock.monotonic() > deadline:
                raise LabError(
                    f"after {RUNNING_SECONDS_MAX:.0f} s {len(open_ends)} pods neither run nor are called unschedulable: "
                    f"{', '.join(sorted(open_ends)[:5])}; the log of kubelet-sim-0 ends with:\n"
                    f"{log_tail(self._folder.log_path('kubelet-sim-0'))}"
                )
            await client.clock.sleep(POLL_SECONDS)

    async def _run_of(self, client: Session, watched: _Watched, key: str, began: float) -> PodRun:
        pod = watched.pods[key]
        if key not in watched.running_at:
            request = ExplainRequest(namespace=NAMESPACE, name=pod.metadata.name, uid=pod.metadata.uid)
            attempts = await explanations(client.transport, client.record.of("scheduler"), request)
            return PodRun(pod, None, attempts=tuple(attempts))
        run = PodRun(pod, watched.running_at[key] - began)
        if not pod.placed.devices:
            return run
        stored = await client.api.get("nodetopologies", pod.spec.node_name)
        return replace(run, topology=project_topology(NodeTopology.FromString(stored.value)))


def _unschedulable(pod: Pod | None) -> bool:
    return pod is not None and any(
        item.type == "PodScheduled" and item.status == "False" and item.reason == "Unschedulable"
        for item in pod.status.conditions
    )
