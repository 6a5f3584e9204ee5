"""What real API servers leave in etcd passes the check, after everything that moves a ledger."""

import asyncio

from apiserver.store.etcd import EtcdStore
from protos.orrery.v1.api_pb2 import BOUND, Binding, Fence
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.placement_pb2 import DeviceShare
from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import ApiClient
from services.lab.check import KIND_FITS, run_check
from tests.direct import api_servers, lead, node, pod, topology


async def bound(
    client: ApiClient, fence: Fence, made: Pod, node_name: str, devices: tuple[tuple[int, int], ...] = ()
) -> None:
    stored = Pod.FromString((await client.create("pods", made)).object.value)
    binding = Binding(
        namespace="default",
        name=made.metadata.name,
        uid=stored.metadata.uid,
        node_name=node_name,
        devices=[DeviceShare(index=index, milli=milli) for index, milli in devices],
    )
    result = await client.bind(binding, fence=fence)
    assert result.outcome == BOUND, result.message


async def shrink(client: ApiClient, name: str, cpu: str) -> None:
    stored = await client.get("nodes", name)
    smaller = Node.FromString(stored.value)
    smaller.status.allocatable["cpu"] = cpu
    await client.update_status("nodes", smaller)


async def test_binds_ends_removals_and_a_shrinking_node_leave_a_state_that_agrees(
    etcd_endpoint: str, etcd_store: EtcdStore
) -> None:
    async with api_servers([etcd_store]) as (api,):
        client, fence = api.client, await lead(api.client)
        await client.create("nodes", node("gpu", gpus=4))
        await client.create("nodetopologies", topology("gpu", 4))
        await client.create("nodes", node("cpu", cpu="2"))
        await client.create("nodes", node("shrinks", cpu="4"))
        await bound(client, fence, pod("whole", gpus=2), "gpu", ((0, 1000), (3, 1000)))
        await bound(client, fence, pod("share", gpu_milli=300), "gpu", ((1, 300),))
        await bound(client, fence, pod("ended", gpus=1), "gpu", ((2, 1000),))
        await bound(client, fence, pod("removed", cpu="1500m"), "cpu")
        await bound(client, fence, pod("stays", cpu="2"), "shrinks")
        await client.patch_status("pods", "ended", "default", {"phase": "Succeeded"})
        await client.delete("pods", "removed", "default", grace_period_seconds=0)
        await shrink(client, "shrinks", "1")
        await client.create("pods", pod("waits", gpus=3))
        result = await asyncio.to_thread(run_check, etcd_endpoint)
        assert result.agrees, result.differences
        assert (result.nodes, result.ledgers, result.devices, result.overcommitted) == (3, 3, 4, 1)
        assert (result.pods, result.placed, result.shares, result.finished, result.pending) == (5, 3, 3, 1, 1)
        await client.create("pods", pod("forgotten", cpu="2"))
        result = await asyncio.to_thread(run_check, etcd_endpoint)
        assert [(each.kind, each.subject) for each in result.differences] == [(KIND_FITS, "pod default/forgotten")]
