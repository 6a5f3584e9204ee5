"""The kubelets' shell against real API servers, on both stores: from a bound pod to its end, through restarts and faults."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import pytest
from google.protobuf.message import Message

from apiserver.store.protocol import Store
from kubelet_sim.core.events import RemovePod, WriteStatus
from kubelet_sim.fleet import fleet_machines, load_catalogue
from kubelet_sim.settings import KubeletSettings
from kubelet_sim.shell import KubeletShell
from kubelet_sim.writer import PodWriter
from protos.orrery.v1.api_pb2 import BOUND, DELETED, Binding, Fence
from protos.orrery.v1.lease_pb2 import Lease
from protos.orrery.v1.node_allocation_pb2 import NodeAllocation
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.placement_pb2 import DeviceShare
from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import ApiClient
from services.client.backoff import Backoff
from services.model.errors import OutcomeUnknown, Unavailable
from services.model.node import TopologyView
from services.model.topology import describe_links
from services.runtime.clock import RealClock
from services.runtime.logging import silent
from services.runtime.transport import Channel, M
from services.wire.metadata import object_key
from services.wire.topology import topology_view
from tests.direct import api_servers, lead, node, pod

T = TypeVar("T", bound=Message)
SECONDS_MAX = 30.0
FAST = KubeletSettings(name="kubelet-sim-0", apiserver=("127.0.0.1:1",), seed=1, speed=50.0)


@asynccontextmanager
async def playing(client: ApiClient, *fleet: str, settings: KubeletSettings = FAST) -> AsyncIterator[KubeletShell]:
    """A kubelet_sim that is ready; gone at once, as if killed, when the block ends."""
    machines = fleet_machines(load_catalogue(), fleet)
    shell = KubeletShell(client, RealClock(), settings, random.Random(0), machines=machines)
    task = asyncio.create_task(shell.run())
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await shell.ready.wait()
        yield shell
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def objects_when(
    client: ApiClient, resource: str, cls: type[T], wanted: Callable[[dict[str, T]], bool]
) -> dict[str, T]:
    """All objects of a resource by namespace/name, at the first moment at which they are as wanted."""
    items, version = await client.list(resource)
    found = {object_key(item.value): cls.FromString(item.value) for item in items}
    if wanted(found):
        return found
    async with asyncio.timeout(SECONDS_MAX):
        async for response in client.watch(resource, resource_version=version):
            for event in response.events:
                if not event.value:
                    continue
                found[object_key(event.value)] = cls.FromString(event.value)
                if event.type == DELETED:
                    del found[object_key(event.value)]
                if wanted(found):
                    return found
    raise AssertionError("the watch ended")


async def pods_in(client: ApiClient, phase: str, *names: str) -> dict[str, Pod]:
    return await objects_when(
        client,
        "pods",
        Pod,
        lambda found: all(
            f"default/{name}" in found and found[f"default/{name}"].status.phase == phase for name in names
        ),
    )


async def gone(client: ApiClient, name: str) -> None:
    await objects_when(client, "pods", Pod, lambda found: f"default/{name}" not in found)


async def run_on(
    client: ApiClient, fence: Fence, name: str, node_name: str, *, devices: tuple[int, ...] = (), run_seconds: str = ""
) -> Pod:
    """Creates a pod and binds it."""
    wanted = pod(name, gpus=len(devices))
    if run_seconds:
        wanted.metadata.annotations["orrery.dev/run-seconds"] = run_seconds
    made = Pod.FromString((await client.create("pods", wanted)).object.value)
    binding = Binding(
        namespace="default",
        name=name,
        uid=made.metadata.uid,
        node_name=node_name,
        devices=[DeviceShare(index=index, milli=1000) for index in devices],
    )
    result = await client.bind(binding, fence=fence)
    assert result.outcome == BOUND, result.message
    return made


async def devices_in_use(client: ApiClient, node_name: str) -> list[int]:
    allocation = NodeAllocation.FromString((await client.get("nodeallocations", node_name)).value)
    return [device.index for device in allocation.status.devices if device.in_use_milli]


async def test_a_fleet_registers_with_its_hardware_and_renews_its_leases(store: Store) -> None:
    async with api_servers([store]) as (api,), playing(api.client, "dgx-h100=2", "cpu-16=1"):
        nodes = await objects_when(api.client, "nodes", Node, lambda found: len(found) == 3)
        assert sorted(nodes) == ["cpu-16-0", "dgx-h100-0", "dgx-h100-1"]
        assert nodes["dgx-h100-1"].status.allocatable["nvidia.com/gpu"] == "8"
        assert nodes["dgx-h100-1"].status.allocatable["memory"] == "2Ti"
        assert {item.type: item.status for item in nodes["cpu-16-0"].status.conditions}["Ready"] == "True"
        view: TopologyView = topology_view((await api.client.get("nodetopologies", "dgx-h100-1")).value)
        assert describe_links(view, range(8)) == "NV18 x 28"
        leases = await objects_when(
            api.client, "leases", Lease, lambda found: sum(key.startswith("kube-node-lease/") for key in found) == 3
        )
        lease = leases["kube-node-lease/cpu-16-0"]
        assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == ("cpu-16-0", 40)
        assert lease.metadata.owner_references[0].uid == nodes["cpu-16-0"].metadata.uid


async def renewed_thrice(client: ApiClient) -> list[str]:
    """The leases, once each of the three was seen with three times of renewal."""
    seen: dict[str, set[tuple[int, int]]] = {}

    def wanted(found: dict[str, Lease]) -> bool:
        for key, lease in found.items():
            seen.setdefault(key, set()).add((lease.spec.renew_time.seconds, lease.spec.renew_time.nanos))
        return len(seen) == 3 and all(len(times) >= 3 for times in seen.values())

    return sorted(await objects_when(client, "leases", Lease, wanted))


async def test_leases_are_renewed_again_and_again_also_by_a_later_process(memory_store: Store) -> None:
    settings = replace(FAST, lease_renew_seconds=0.2)
    async with api_servers([memory_store]) as (api,):
        for _ in range(2):
            async with playing(api.client, "cpu-16=3", settings=settings):
                assert await renewed_thrice(api.client) == [f"kube-node-lease/cpu-16-{number}" for number in range(3)]


async def test_a_bound_pod_runs_and_succeeds_and_its_devices_are_free_again(store: Store) -> None:
    async with api_servers([store]) as (api,), playing(api.client, "dgx-h100=1"):
        fence = await lead(api.client)
        await run_on(api.client, fence, "a", "dgx-h100-0", devices=(2, 3), run_seconds="1000")
        running = (await pods_in(api.client, "Running", "a"))["default/a"]
        assert await devices_in_use(api.client, "dgx-h100-0") == [2, 3]
        assert {item.type: item.status for item in running.status.conditions} == dict.fromkeys(
            ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"], "True"
        )
        assert running.status.container_statuses[0].state.HasField("running")
        assert running.status.pod_ip
        assert running.status.qos_class == "Burstable"
        await run_on(api.client, fence, "b", "dgx-h100-0", devices=(0,), run_seconds="1")
        ended = (await pods_in(api.client, "Succeeded", "b"))["default/b"]
        assert ended.status.container_statuses[0].state.terminated.reason == "Completed"
        assert await devices_in_use(api.client, "dgx-h100-0") == [2, 3]


async def test_a_pod_that_was_put_where_it_does_not_fit_fails_with_the_kubelets_reason(store: Store) -> None:
    async with api_servers([store]) as (api,), playing(api.client, "cpu-16=1"):
        await api.client.create("pods", pod("big", cpu="17", node="cpu-16-0"))
        failed = (await pods_in(api.client, "Failed", "big"))["default/big"]
        assert failed.status.reason == "OutOfcpu"
        assert failed.status.message == (
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 17000, used: 0, capacity: 16000"
        )


async def test_a_deleted_pod_is_stopped_and_then_removed_and_gives_back_its_place(store: Store) -> None:
    async with api_servers([store]) as (api,), playing(api.client, "dgx-h100=1"):
        fence = await lead(api.client)
        await run_on(api.client, fence, "a", "dgx-h100-0", devices=(1,))
        await pods_in(api.client, "Running", "a")
        answer = await api.client.delete("pods", "a", "default")
        assert answer.terminating
        await gone(api.client, "a")
        assert await devices_in_use(api.client, "dgx-h100-0") == []


async def test_nodes_that_others_made_are_adopted_and_become_ready(store: Store) -> None:
    async with api_servers([store]) as (api,), playing(api.client):
        foreign = node("foreign")
        del foreign.status.conditions[:]
        foreign.status.conditions.add(type="NetworkUnavailable", status="False")
        foreign.metadata.labels["orrery.dev/simulated"] = "true"
        await api.client.create("nodes", foreign)
        nodes = await objects_when(
            api.client,
            "nodes",
            Node,
            lambda found: any(
                item.type == "Ready" and item.status == "True" for item in found["foreign"].status.conditions
            ),
        )
        assert "NetworkUnavailable" in [item.type for item in nodes["foreign"].status.conditions]
        assert nodes["foreign"].status.addresses[0].type == "InternalIP"
        await run_on(api.client, await lead(api.client), "a", "foreign", run_seconds="1")
        await pods_in(api.client, "Succeeded", "a")


async def test_nodes_without_the_label_are_left_alone(memory_store: Store) -> None:
    async with api_servers([memory_store]) as (api,), playing(api.client, "cpu-16=1") as shell:
        fence = await lead(api.client)
        await api.client.create("nodes", node("real"))
        await run_on(api.client, fence, "theirs", "real")
        await run_on(api.client, fence, "ours", "cpu-16-0")
        found = await pods_in(api.client, "Running", "ours")
        assert found["default/theirs"].status.phase == "Pending"
        assert sorted(shell.nodes.cache) == ["cpu-16-0"]


async def test_after_a_restart_running_pods_go_on_and_what_was_under_way_is_finished(store: Store) -> None:
    async with api_servers([store]) as (api,):
        fence = await lead(api.client)
        async with playing(api.client, "dgx-h100=1"):
            await run_on(api.client, fence, "long", "dgx-h100-0", devices=(0,), run_seconds="100000")
            await run_on(api.client, fence, "short", "dgx-h100-0", devices=(1,), run_seconds="50")
            before = (await pods_in(api.client, "Running", "long", "short"))["default/long"]
            await run_on(api.client, fence, "dying", "dgx-h100-0", devices=(2,))
            await pods_in(api.client, "Running", "dying")
        await api.client.delete("pods", "dying", "default")
        await run_on(api.client, fence, "new", "dgx-h100-0", devices=(3,))
        async with playing(api.client, "dgx-h100=1"):
            await pods_in(api.client, "Succeeded", "short")
            await pods_in(api.client, "Running", "new")
            await gone(api.client, "dying")
            after = (await pods_in(api.client, "Running", "long"))["default/long"]
        assert after == before
        assert await devices_in_use(api.client, "dgx-h100-0") == [0, 3]


class FaultyChannel:
    """Loses calls: before they reach the server, or their answers after they did."""

    def __init__(self, inner: Channel, rng: random.Random) -> None:
        self.faults = 0
        self._inner = inner
        self._rng = rng

    async def unary(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        timeout_seconds: float,
        metadata: Mapping[str, str] | None = None,
    ) -> M:
        chance = self._rng.random()
        if chance < 0.2:
            self.faults += 1
            raise Unavailable("no server was reached")
        answer = await self._inner.unary(
            method, request, response_type, timeout_seconds=timeout_seconds, metadata=metadata
        )
        if chance < 0.4:
            self.faults += 1
            raise OutcomeUnknown("the answer was lost")
        return answer

    async def stream(
        self, method: str, request: Message, response_type: type[M], *, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[M]:
        async for answer in self._inner.stream(method, request, response_type, metadata=metadata):
            yield answer
            if self._rng.random() < 0.1:
                self.faults += 1
                raise Unavailable("the stream was cut")

    async def close(self) -> None:
        return


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_lost_calls_and_lost_answers_leave_nothing_undone(memory_store: Store, seed: int) -> None:
    async with api_servers([memory_store]) as (api,):
        fence = await lead(api.client)
        channel = FaultyChannel(api.client.channel, random.Random(seed))
        names = [f"p{number}" for number in range(40)]
        async with playing(ApiClient(channel), "dgx-h100=3", "cpu-16=3") as shell:
            for number, name in enumerate(names):
                await run_on(api.client, fence, name, f"cpu-16-{number % 3}", run_seconds="20")
            await pods_in(api.client, "Succeeded", *names)
            for name in names:
                await api.client.delete("pods", name, "default")
            await objects_when(api.client, "pods", Pod, lambda found: not found)
            assert channel.faults > 5
            assert shell.writer.dropped == 0
        nodes, _ = await api.client.list("nodes")
        assert len(nodes) == 6


async def test_a_pod_deleted_by_force_holds_its_device_until_it_has_stopped(memory_store: Store) -> None:
    """And nothing that is written for it reaches the pod that takes its name."""
    async with api_servers([memory_store]) as (api,), playing(api.client, "dgx-h100=1") as shell:
        fence = await lead(api.client)
        await run_on(api.client, fence, "a", "dgx-h100-0", devices=(0,))
        await pods_in(api.client, "Running", "a")
        await api.client.delete("pods", "a", "default", grace_period_seconds=0)
        await run_on(api.client, fence, "b", "dgx-h100-0", devices=(0,))
        found = await objects_when(api.client, "pods", Pod, lambda found: found["default/b"].status.phase != "Pending")
        # Whichever came first: the end of the containers, or the next pod.
        if found["default/b"].status.phase == "Failed":
            assert found["default/b"].status.reason == "UnexpectedAdmissionError"
        usage = shell.core.holdings("dgx-h100-0")
        assert usage is not None
        assert usage.device_milli[0] <= 1000
        await api.client.delete("pods", "b", "default", grace_period_seconds=0)
        await run_on(api.client, fence, "c", "dgx-h100-0", run_seconds="1")
        await pods_in(api.client, "Succeeded", "c")
        assert shell.core.count_by_stage()["running"] == 0


async def test_a_write_for_a_pod_that_is_gone_does_not_reach_the_next_of_its_name(memory_store: Store) -> None:
    async with api_servers([memory_store]) as (api,):
        made = Pod.FromString((await api.client.create("pods", pod("a"))).object.value)
        log = silent()
        writer = PodWriter(api.client, RealClock(), Backoff(random.Random(0)), log)
        writer.put(WriteStatus("default", "a", "an-earlier-uid", {"phase": "Failed"}))
        writer.put(RemovePod("default", "a", "another-earlier-uid"))
        writer.put(WriteStatus("default", "a", made.metadata.uid, {"phase": "Running"}))
        task = asyncio.create_task(writer.run())
        found = await pods_in(api.client, "Running", "a")
        assert found["default/a"].metadata.uid == made.metadata.uid
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_late_write_of_an_earlier_stage_is_corrected(memory_store: Store) -> None:
    async with api_servers([memory_store]) as (api,), playing(api.client, "cpu-16=1"):
        fence = await lead(api.client)
        made = await run_on(api.client, fence, "a", "cpu-16-0")
        await pods_in(api.client, "Running", "a")
        late = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}
        await api.client.patch_status("pods", "a", "default", late, uid=made.metadata.uid)
        await pods_in(api.client, "Running", "a")
        assert Pod.FromString((await api.client.get("pods", "a", "default")).value).status.phase == "Running"
