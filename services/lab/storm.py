"""Load for rehearsals: many equal pods at once, and waiting for what becomes of pods.

A storm creates its pods over whatever API servers answer, again where an answer was lost; each pod begins a trace of its
own. `Followed` watches pods by label and knows at any moment how many there are, are bound, and run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from protos.orrery.v1.api_pb2 import Operation
from protos.orrery.v1.pod_pb2 import Pod
from services.client.informer import Informer
from services.lab.bulk import BulkResult, create_all
from services.lab.connect import Session
from services.lab.replay import PodState, pod_state
from services.lab.trace_objects import create
from services.model.names import ANNOTATION_TRACEPARENT, RESOURCE_CPU, RESOURCE_GPU, RESOURCE_MEMORY
from services.runtime.telemetry import traceparent_of, tracer

BATCH_PODS = 50
LABEL_APP = "app"
IMAGE = "registry.example/storm:1"


@dataclass(frozen=True, slots=True)
class StormOptions:
    """`pods` equal pods NAME-0, NAME-1, ... with the label app=NAME; requests as Kubernetes writes quantities."""

    name: str
    namespace: str
    pods: int
    cpu: str
    memory: str
    gpus: int = 0


def storm_pod(options: StormOptions, number: int, traceparent: str) -> Pod:
    """One of them."""
    pod = Pod(api_version="v1", kind="Pod")
    pod.metadata.name = f"{options.name}-{number}"
    pod.metadata.namespace = options.namespace
    pod.metadata.labels[LABEL_APP] = options.name
    if traceparent:
        pod.metadata.annotations[ANNOTATION_TRACEPARENT] = traceparent
    container = pod.spec.containers.add(name="main", image=IMAGE)
    container.resources.requests[RESOURCE_CPU] = options.cpu
    container.resources.requests[RESOURCE_MEMORY] = options.memory
    if options.gpus:
        container.resources.limits[RESOURCE_GPU] = str(options.gpus)
    return pod


async def create_storm(client: Session, options: StormOptions, on_created: Callable[[int], None]) -> BulkResult:
    """Creates the pods; those that are there from an earlier run are left. Raises LabError."""
    operations: list[Operation] = []
    for number in range(options.pods):
        # Each pod begins its own trace, not the batch in which it happens to ride; the span marks the beginning.
        span = tracer().start_span(f"storm pod/{options.name}-{number}", context=Context(), kind=SpanKind.CLIENT)
        span.end()
        operations.append(create("pods", storm_pod(options, number, traceparent_of(span))))
    return await create_all(client, operations, on_created, batch=BATCH_PODS)


class Followed:
    """The pods of one label selector, as an informer tells them."""

    def __init__(self) -> None:
        self.pods: dict[str, PodState] = {}
        self._changed = asyncio.Event()

    def on_event(self, key: str, _old: PodState | None, new: PodState | None) -> None:
        if new is None:
            self.pods.pop(key, None)
        else:
            self.pods[key] = new
        self._changed.set()

    @property
    def bound(self) -> int:
        return sum(bool(state.node) for state in self.pods.values())

    @property
    def running(self) -> int:
        return sum(state.phase in ("Running", "Succeeded") for state in self.pods.values())

    async def wait(self, reached: Callable[[], bool]) -> None:
        """Returns once `reached`; it is asked after each change."""
        while not reached():
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def following(client: Session, namespace: str, selector: str) -> AsyncIterator[Followed]:
    """Follows pods for as long as the block lasts; their first list is there when it begins."""
    followed = Followed()
    informer: Informer[PodState] = Informer(
        client.api,
        client.clock,
        "pods",
        pod_state,
        followed.on_event,
        rng=client.rng,
        namespace=namespace,
        label_selector=selector,
    )
    task = asyncio.ensure_future(informer.run())
    try:
        await informer.wait_synced()
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
