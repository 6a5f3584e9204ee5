"""API servers in the test's own process: the real service on a real store, called without a socket."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from google.protobuf.message import Message

from apiserver.server import ApiService
from apiserver.settings import ApiServerSettings
from apiserver.store.protocol import Store
from protos.orrery.v1.api_pb2 import Fence
from protos.orrery.v1.lease_pb2 import Lease
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.node_topology_pb2 import NodeTopology
from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import ApiClient
from services.runtime.clock import RealClock
from services.runtime.transport import CallContext, M

LEASE = "kube-system/orrery-scheduler"


class DirectChannel:
    """A `Channel` that calls the handler; messages are serialized, so nothing is shared."""

    def __init__(self, handler: object) -> None:
        self._handler = handler

    async def unary(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        timeout_seconds: float,
        metadata: Mapping[str, str] | None = None,
    ) -> M:
        handle = getattr(self._handler, method.rpartition("/")[2])
        async with asyncio.timeout(timeout_seconds):
            answer = await handle(
                type(request).FromString(request.SerializeToString()), CallContext("test", metadata or {})
            )
        return response_type.FromString(answer.SerializeToString())

    async def stream(
        self, method: str, request: Message, response_type: type[M], *, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[M]:
        handle = getattr(self._handler, method.rpartition("/")[2])
        async for answer in handle(request, CallContext("test", metadata or {})):
            yield response_type.FromString(answer.SerializeToString())

    async def close(self) -> None:
        return


@dataclass
class Running:
    """One API server and a client of it."""

    service: ApiService
    client: ApiClient


@asynccontextmanager
async def api_servers(stores: Sequence[Store], **options: object) -> AsyncIterator[list[Running]]:
    """One API server a store; all are ready when the block begins, and gone when it ends."""
    async with AsyncExitStack() as stack:
        running = []
        for number, store in enumerate(stores):
            settings = ApiServerSettings(name=f"apiserver-{number}", **options)  # type: ignore[arg-type]
            service = ApiService(store, RealClock(), settings, random.Random(number))
            task = asyncio.create_task(service.run())
            stack.push_async_callback(stop, task)
            async with asyncio.timeout(20):
                await service.ready.wait()
            running.append(Running(service, ApiClient(DirectChannel(service))))
        yield running


async def stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def pod(
    name: str, *, cpu: str = "100m", gpus: int = 0, gpu_milli: int = 0, node: str = "", grace: int | None = None
) -> Pod:
    """A pod of one container in the namespace default."""
    made = Pod()
    made.metadata.name, made.metadata.namespace = name, "default"
    container = made.spec.containers.add(name="main", image="example/app:1")
    container.resources.requests["cpu"] = cpu
    if gpus:
        container.resources.limits["nvidia.com/gpu"] = str(gpus)
    if gpu_milli:
        container.resources.requests["orrery.dev/gpu-milli"] = str(gpu_milli)
        container.resources.limits["orrery.dev/gpu-milli"] = str(gpu_milli)
    if node:
        made.spec.node_name = node
    if grace is not None:
        made.spec.termination_grace_period_seconds = grace
    return made


def node(name: str, *, cpu: str = "8", pods: int = 110, gpus: int = 0) -> Node:
    made = Node()
    made.metadata.name = name
    resources = {"cpu": cpu, "memory": "64Gi", "pods": str(pods)}
    if gpus:
        resources |= {"nvidia.com/gpu": str(gpus), "orrery.dev/gpu-milli": str(1000 * gpus)}
    for key, value in resources.items():
        made.status.capacity[key] = value
        made.status.allocatable[key] = value
    made.status.conditions.add(type="Ready", status="True")
    return made


def topology(name: str, gpus: int) -> NodeTopology:
    made = NodeTopology()
    made.metadata.name = name
    made.spec.numa_nodes.add(id=0, cpus="0-7")
    for index in range(gpus):
        made.spec.gpus.add(index=index, uuid=f"GPU-{name}-{index}", model="A100", numa_node=0)
    for a in range(gpus):
        for b in range(a + 1, gpus):
            made.spec.gpu_links.add(a=a, b=b, path="SYS", nvlinks=12)
    return made


async def lead(client: ApiClient, holder: str = "scheduler-a") -> Fence:
    """Takes the scheduler's lease for `holder` and returns the fence."""
    lease = Lease()
    namespace, _, name = LEASE.partition("/")
    lease.metadata.namespace, lease.metadata.name = namespace, name
    lease.spec.holder_identity, lease.spec.lease_duration_seconds = holder, 15
    answer = await client.create("leases", lease)
    return Fence(lease=LEASE, token=answer.fencing_token)


async def take_over(client: ApiClient, holder: str) -> Fence:
    """Another holder takes the lease."""
    namespace, _, name = LEASE.partition("/")
    stored = await client.get("leases", name, namespace)
    lease = Lease.FromString(stored.value)
    lease.spec.holder_identity = holder
    lease.spec.lease_transitions += 1
    answer = await client.update("leases", lease, resource_version=stored.resource_version)
    return Fence(lease=LEASE, token=answer.fencing_token)
