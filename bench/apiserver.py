"""The API server alone, over the store in memory and without a socket: creations, binds and status patches in batches."""

import asyncio
import json
import random
import time

from apiserver.server import ApiService
from apiserver.settings import ApiServerSettings
from apiserver.store.memory import MemoryStore
from protos.orrery.v1.api_pb2 import (
    BatchRequest,
    BindBatchRequest,
    Binding,
    BindOutcome,
    Fence,
    Operation,
    WriteRequest,
)
from protos.orrery.v1.lease_pb2 import Lease
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.pod_pb2 import Pod
from services.runtime.clock import RealClock
from services.runtime.transport import CallContext

PODS = 1_000
NODES = 100
CALL = CallContext("bench")
_STATUS = json.dumps({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}).encode()


async def _serve() -> tuple[ApiService, "asyncio.Task[None]", Fence]:
    service = ApiService(MemoryStore(), RealClock(), ApiServerSettings(name="bench"), random.Random(1))
    task = asyncio.create_task(service.run())
    await service.ready.wait()
    lease = Lease()
    lease.metadata.namespace, lease.metadata.name = "kube-system", "orrery-scheduler"
    lease.spec.holder_identity, lease.spec.lease_duration_seconds = "bench", 15
    answer = await service.Create(WriteRequest(resource="leases", value=lease.SerializeToString()), CALL)
    for number in range(NODES):
        node = Node()
        node.metadata.name = f"n{number}"
        for name, amount in (("cpu", "64"), ("memory", "512Gi"), ("pods", "250")):
            node.status.allocatable[name] = amount
        await service.Create(WriteRequest(resource="nodes", value=node.SerializeToString()), CALL)
    return service, task, Fence(lease="kube-system/orrery-scheduler", token=answer.fencing_token)


def _creations() -> BatchRequest:
    request = BatchRequest()
    for number in range(PODS):
        pod = Pod()
        pod.metadata.namespace, pod.metadata.name = "default", f"p{number}"
        container = pod.spec.containers.add(name="main", image="example/app:1")
        container.resources.requests["cpu"] = "100m"
        request.operations.append(Operation(create=WriteRequest(resource="pods", value=pod.SerializeToString())))
    return request


async def _run() -> dict[str, float]:
    figures: dict[str, float] = {}
    service, task, fence = await _serve()

    async def measured(name: str, work: object) -> object:
        before = time.process_time()
        answer = await work  # type: ignore[misc]
        figures[name] = (time.process_time() - before) * 1e6 / PODS
        return answer

    created = await measured("create", service.Batch(_creations(), CALL))
    uids = [Pod.FromString(item.done.object.value).metadata.uid for item in created.results]  # type: ignore[attr-defined]
    binding = BindBatchRequest(fence=fence)
    for number, uid in enumerate(uids):
        binding.bindings.append(
            Binding(namespace="default", name=f"p{number}", uid=uid, node_name=f"n{number % NODES}")
        )
    bound = await measured("bind", service.BindBatch(binding, CALL))
    assert all(BindOutcome.Name(item.outcome) == "BOUND" for item in bound.results)  # type: ignore[attr-defined]
    patches = BatchRequest(omit_objects=True)
    for number in range(PODS):
        patch = patches.operations.add().patch_status
        patch.resource, patch.namespace, patch.name, patch.patch = "pods", "default", f"p{number}", _STATUS
    await measured("patch status", service.Batch(patches, CALL))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return figures


def main() -> None:
    runs = [asyncio.run(_run()) for _ in range(3)]
    print("API server, us of CPU a pod (batches of 1,000; store in memory; no socket)")
    for name in runs[0]:
        print(f"{name:>14}{sorted(run[name] for run in runs)[1]:>10.0f}")
