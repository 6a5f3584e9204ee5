"""Every outcome of Bind, forced on a real etcd; and what many binders at once leave behind."""

import asyncio
from collections import Counter

import pytest

from apiserver.store.etcd import EtcdStore
from apiserver.store.protocol import Member, Record, StoreOutcomeUnknown, TxnResult
from protos.orrery.v1.api_pb2 import (
    ALREADY_BOUND,
    BOUND,
    CAPACITY,
    CONFLICT,
    FENCED,
    GONE,
    UNKNOWN,
    Binding,
    BindOutcome,
    Fence,
)
from protos.orrery.v1.node_allocation_pb2 import NodeAllocation
from protos.orrery.v1.placement_pb2 import DeviceShare
from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import ApiClient
from tests.conftest import Etcd
from tests.direct import Running, api_servers, lead, node, pod, take_over, topology


async def created(client: ApiClient, made: Pod) -> Pod:
    answer = await client.create("pods", made)
    return Pod.FromString(answer.object.value)


def binding(made: Pod, node_name: str, devices: tuple[int, ...] = ()) -> Binding:
    return Binding(
        namespace=made.metadata.namespace,
        name=made.metadata.name,
        uid=made.metadata.uid,
        node_name=node_name,
        devices=[DeviceShare(index=index, milli=1000) for index in devices],
    )


async def ready_node(client: ApiClient, name: str = "n1", **facts: object) -> None:
    await client.create("nodes", node(name, **facts))  # type: ignore[arg-type]
    if gpus := facts.get("gpus"):
        await client.create("nodetopologies", topology(name, int(str(gpus))))


async def allocation(client: ApiClient, name: str = "n1") -> NodeAllocation:
    return NodeAllocation.FromString((await client.get("nodeallocations", name)).value)


async def test_bound_writes_pod_and_ledger(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client, gpus=4)
        made = await created(api.client, pod("a", cpu="1500m", gpus=2))
        result = await api.client.bind(binding(made, "n1", (1, 3)), fence=fence)
        assert BindOutcome.Name(result.outcome) == "BOUND", result.message
        stored = await api.client.get("pods", "a", "default")
        now = Pod.FromString(stored.value)
        assert stored.resource_version == result.resource_version
        assert now.spec.node_name == "n1"
        assert [share.index for share in now.placed.devices] == [1, 3]
        assert now.placed.fencing_token == fence.token
        assert [(item.type, item.status) for item in now.status.conditions] == [("PodScheduled", "True")]
        held = await allocation(api.client)
        assert dict(held.status.in_use)["cpu"] == "1500m"
        assert [device.in_use_milli for device in held.status.devices] == [0, 1000, 0, 1000]


async def test_the_same_binding_again_is_already_bound(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client, gpus=2)
        made = await created(api.client, pod("a", gpus=1))
        first = await api.client.bind(binding(made, "n1", (0,)), fence=fence)
        again = await api.client.bind(binding(made, "n1", (0,)), fence=fence)
        other_device = await api.client.bind(binding(made, "n1", (1,)), fence=fence)
        assert (first.outcome, again.outcome, other_device.outcome) == (BOUND, ALREADY_BOUND, CONFLICT)
        assert (await allocation(api.client)).status.in_use["pods"] == "1"


async def test_a_pod_bound_elsewhere_is_a_conflict_that_names_the_node(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client, "n1")
        await ready_node(api.client, "n2")
        made = await created(api.client, pod("a"))
        await api.client.bind(binding(made, "n1"), fence=fence)
        result = await api.client.bind(binding(made, "n2"), fence=fence)
        assert (result.outcome, result.node_name) == (CONFLICT, "n1")
        assert (await allocation(api.client, "n2")).status.in_use["pods"] == "0"


async def test_a_deposed_leader_is_fenced_and_writes_nothing(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        old = await lead(api.client)
        await ready_node(api.client)
        made = await created(api.client, pod("a"))
        new = await take_over(api.client, "scheduler-b")
        late = await api.client.bind(binding(made, "n1"), fence=old)
        assert late.outcome == FENCED
        assert not late.comparisons.epoch
        assert (await allocation(api.client)).status.in_use["pods"] == "0"
        assert (await api.client.bind(binding(made, "n1"), fence=new)).outcome == BOUND


@pytest.mark.parametrize("place", ["n1", "n2"])
async def test_a_deposed_leader_is_fenced_also_where_its_successor_has_bound_the_pod(
    etcd_store: EtcdStore, place: str
) -> None:
    """Two leaders that see the same often choose the same: that is no answer to the first one's late bind."""
    async with api_servers([etcd_store]) as (api,):
        old = await lead(api.client)
        for name in ("n1", "n2"):
            await ready_node(api.client, name)
        made = await created(api.client, pod("a"))
        new = await take_over(api.client, "scheduler-b")
        assert (await api.client.bind(binding(made, place), fence=new)).outcome == BOUND
        assert (await api.client.bind(binding(made, "n1"), fence=old)).outcome == FENCED
        assert (await api.client.bind(binding(made, place), fence=new)).outcome == ALREADY_BOUND


async def test_a_bind_that_had_landed_is_already_bound_also_after_its_leader_was_deposed(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        old = await lead(api.client)
        await ready_node(api.client)
        made = await created(api.client, pod("a"))
        assert (await api.client.bind(binding(made, "n1"), fence=old)).outcome == BOUND
        await take_over(api.client, "scheduler-b")
        assert (await api.client.bind(binding(made, "n1"), fence=old)).outcome == ALREADY_BOUND


async def test_the_late_binds_of_a_deposed_leader_are_read_once(etcd_store: EtcdStore) -> None:
    reads = 0
    get = etcd_store.get

    async def counted(key: bytes, *, revision: int = 0) -> Record | None:
        nonlocal reads
        reads += 1
        return await get(key, revision=revision)

    async with api_servers([etcd_store]) as (api,):
        old = await lead(api.client)
        await ready_node(api.client)
        pods = [await created(api.client, pod(f"a{number}")) for number in range(40)]
        new = await take_over(api.client, "scheduler-b")
        await api.client.bind_batch([binding(made, "n1") for made in pods], fence=new)
        etcd_store.get = counted  # type: ignore[method-assign]
        late = await api.client.bind_batch([binding(made, "n1") for made in pods], fence=old)
    assert {result.outcome for result in late} == {FENCED}
    assert reads <= 40 + 3, "each pod once, and the ledger's two keys and the epoch once for all"


async def test_the_epoch_is_compared_in_the_transaction_itself(etcd_store: EtcdStore, etcd: Etcd) -> None:
    """The second API server does not know of the new epoch when it judges; etcd's comparison finds it."""
    second_store = EtcdStore([etcd.endpoint])
    async with api_servers([etcd_store, second_store]) as (first, second):
        old = await lead(first.client)
        await ready_node(first.client)
        made = await created(first.client, pod("a"))
        await second.client.get("pods", "a", "default")
        plain = second.service.cache.registry.plain
        stale = dict(plain)
        second.service.cache.registry.learn_plain = lambda record: None  # type: ignore[method-assign]
        await take_over(first.client, "scheduler-b")
        assert plain == stale
        del second.service.cache.registry.learn_plain  # type: ignore[method-assign]
        late = await second.client.bind(binding(made, "n1"), fence=old)
        assert (late.outcome, late.attempts) == (FENCED, 1)
    await second_store.close()


async def test_a_registered_scheduler_must_bring_its_fence(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        await ready_node(api.client)
        made = await created(api.client, pod("a"))
        assert (await api.client.bind(binding(made, "n1"))).outcome == FENCED
        foreign = pod("b")
        foreign.spec.scheduler_name = "somebody-else"
        assert (await api.client.bind(binding(await created(api.client, foreign), "n1"))).outcome == BOUND


@pytest.mark.parametrize(
    ("facts", "wanted", "why"),
    [
        ({"cpu": "1"}, {"cpu": "2"}, "Insufficient cpu"),
        ({"pods": 0}, {}, "Too many pods"),
        ({"gpus": 2}, {"gpus": 3}, "Insufficient nvidia.com/gpu"),
    ],
)
async def test_what_a_node_cannot_hold_is_refused_for_capacity(
    etcd_store: EtcdStore, facts: dict[str, object], wanted: dict[str, object], why: str
) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client, **facts)
        made = await created(api.client, pod("a", **wanted))  # type: ignore[arg-type]
        result = await api.client.bind(binding(made, "n1"), fence=fence)
        assert (result.outcome, result.comparisons.ledger) == (CAPACITY, False)
        assert why in result.message


async def test_a_device_in_use_is_not_given_twice(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client, gpus=2)
        first, second = await created(api.client, pod("a", gpus=1)), await created(api.client, pod("b", gpus=1))
        assert (await api.client.bind(binding(first, "n1", (0,)), fence=fence)).outcome == BOUND
        result = await api.client.bind(binding(second, "n1", (0,)), fence=fence)
        assert (result.outcome, result.message) == (CAPACITY, "node n1: device 0 is in use")
        assert (await api.client.bind(binding(second, "n1", (1,)), fence=fence)).outcome == BOUND


async def test_shares_sum_to_at_most_the_whole(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client, gpus=1)
        outcomes = []
        for name, milli in (("a", 460), ("b", 460), ("c", 460), ("d", 80)):
            made = await created(api.client, pod(name, gpu_milli=milli))
            outcomes.append((await api.client.bind(binding(made, "n1"), fence=fence)).outcome)
        assert outcomes == [BOUND, BOUND, CAPACITY, BOUND]
        assert [device.in_use_milli for device in (await allocation(api.client)).status.devices] == [1000]


async def test_a_pod_that_is_gone_or_going_is_gone(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client)
        made = await created(api.client, pod("a"))
        await api.client.delete("pods", "a", "default")
        assert (await api.client.bind(binding(made, "n1"), fence=fence)).outcome == GONE
        await created(api.client, pod("a"))
        again = await api.client.bind(binding(made, "n1"), fence=fence)
        assert (again.outcome, "uid" in again.message) == (GONE, True)


async def test_a_gated_pod_is_not_bound(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client)
        gated = pod("a")
        gated.spec.scheduling_gates.add(name="example.com/hold")
        result = await api.client.bind(binding(await created(api.client, gated), "n1"), fence=fence)
        assert (result.outcome, "example.com/hold" in result.message) == (CONFLICT, True)


class SilentStore:
    """A store whose transactions are answered by nobody: `applied` says whether they happen all the same."""

    def __init__(self, store: EtcdStore, *, applied: bool, times: int) -> None:
        self._store = store
        self._applied = applied
        self.times = times

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        if self.times > 0 and any(b"/pods/" in write.key for member in members for write in member.writes):
            self.times -= 1
            if self._applied:
                await self._store.txn(members)
            raise StoreOutcomeUnknown("the reply was lost")
        return await self._store.txn(members)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_reply_is_resolved_by_the_same_comparison(etcd_store: EtcdStore, *, applied: bool) -> None:
    silent = SilentStore(etcd_store, applied=applied, times=0)
    async with api_servers([silent]) as (api,):  # type: ignore[list-item]
        fence = await lead(api.client)
        await ready_node(api.client)
        made = await created(api.client, pod("a"))
        silent.times = 1
        result = await api.client.bind(binding(made, "n1"), fence=fence)
        assert result.outcome == BOUND
        stored = await api.client.get("pods", "a", "default")
        assert (stored.resource_version, Pod.FromString(stored.value).spec.node_name) == (result.resource_version, "n1")
        assert (await allocation(api.client)).status.in_use["pods"] == "1"


async def test_what_stays_unresolved_is_unknown_never_refused(etcd_store: EtcdStore) -> None:
    silent = SilentStore(etcd_store, applied=False, times=0)
    async with api_servers([silent]) as (api,):  # type: ignore[list-item]
        fence = await lead(api.client)
        await ready_node(api.client)
        made = await created(api.client, pod("a"))
        silent.times = 1_000
        result = await api.client.bind(binding(made, "n1"), fence=fence)
        assert result.outcome == UNKNOWN
        silent.times = 0
        assert (await api.client.bind(binding(made, "n1"), fence=fence)).outcome == BOUND


async def two_servers(etcd: Etcd, etcd_store: EtcdStore) -> tuple[EtcdStore, EtcdStore]:
    return etcd_store, EtcdStore([etcd.endpoint])


async def test_fifty_binds_of_one_pod_through_two_servers_leave_one_winner(etcd: Etcd, etcd_store: EtcdStore) -> None:
    stores = await two_servers(etcd, etcd_store)
    async with api_servers(stores) as servers:
        fence = await lead(servers[0].client)
        for number in range(10):
            await ready_node(servers[0].client, f"n{number}")
        made = await created(servers[0].client, pod("a"))
        attempts = [servers[i % 2].client.bind(binding(made, f"n{i % 10}"), fence=fence) for i in range(50)]
        results = await asyncio.gather(*attempts)
        outcomes = Counter(BindOutcome.Name(result.outcome) for result in results)
        winners = {result.node_name for result in results if result.outcome in (BOUND, ALREADY_BOUND)}
        assert outcomes["BOUND"] == 1, outcomes
        assert set(outcomes) <= {"BOUND", "ALREADY_BOUND", "CONFLICT"}
        stored = Pod.FromString((await servers[1].client.get("pods", "a", "default")).value)
        assert winners == {stored.spec.node_name}
        total = [(await allocation(servers[1].client, f"n{n}")).status.in_use["pods"] for n in range(10)]
        assert sorted(total) == ["0"] * 9 + ["1"]
    await stores[1].close()


async def test_a_node_never_holds_more_than_it_has_whoever_binds(etcd: Etcd, etcd_store: EtcdStore) -> None:
    """60 pods of half a core for a node of ten cores, through two servers at once: twenty are bound."""
    stores = await two_servers(etcd, etcd_store)
    async with api_servers(stores) as servers:
        fence = await lead(servers[0].client)
        await ready_node(servers[0].client, cpu="10")
        pods = [await created(servers[i % 2].client, pod(f"p{i}", cpu="500m")) for i in range(60)]
        results = await asyncio.gather(
            *(servers[i % 2].client.bind(binding(made, "n1"), fence=fence) for i, made in enumerate(pods))
        )
        outcomes = Counter(BindOutcome.Name(result.outcome) for result in results)
        assert outcomes == {"BOUND": 20, "CAPACITY": 40}
        assert (await allocation(servers[1].client)).status.in_use["cpu"] == "10"
    await stores[1].close()


async def test_ends_and_removals_give_back_exactly_what_was_taken(etcd: Etcd, etcd_store: EtcdStore) -> None:
    stores = await two_servers(etcd, etcd_store)
    async with api_servers(stores) as servers:
        fence = await lead(servers[0].client)
        await ready_node(servers[0].client, gpus=8)
        pods = [await created(servers[0].client, pod(f"p{i}", gpus=1)) for i in range(8)]
        await asyncio.gather(
            *(servers[0].client.bind(binding(made, "n1", (i,)), fence=fence) for i, made in enumerate(pods))
        )
        assert (await allocation(servers[0].client)).status.in_use["nvidia.com/gpu"] == "8"
        ends = [end(servers[i % 2], f"p{i}", remove=i % 3 == 0) for i in range(6)]
        await asyncio.gather(*ends)
        held = await allocation(servers[1].client)
        assert (held.status.in_use["nvidia.com/gpu"], held.status.in_use["pods"]) == ("2", "2")
        assert [device.in_use_milli for device in held.status.devices] == [0] * 6 + [1000] * 2
        # A pod that had ended gives nothing back when it is removed.
        await servers[0].client.delete("pods", "p1", "default")
        assert (await allocation(servers[0].client)).status.in_use["pods"] == "2"
    await stores[1].close()


async def end(server: Running, name: str, *, remove: bool) -> None:
    if remove:
        await server.client.delete("pods", name, "default", grace_period_seconds=0)
    else:
        await server.client.patch_status("pods", name, "default", {"phase": "Succeeded"})


async def test_a_pod_created_on_its_node_takes_its_place_there_or_none(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        await ready_node(api.client, cpu="1")
        fits = await created(api.client, pod("a", cpu="800m", node="n1"))
        too_much = await created(api.client, pod("b", cpu="800m", node="n1"))
        assert fits.HasField("placed")
        assert not too_much.HasField("placed")
        assert (await allocation(api.client)).status.in_use["cpu"] == "800m"


async def test_a_group_is_bound_whole_or_not_at_all(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client, "n1", cpu="2")
        await ready_node(api.client, "n2", cpu="1")
        pods = [await created(api.client, pod(f"p{i}", cpu="1")) for i in range(4)]
        too_many = [binding(made, name) for made, name in zip(pods, ["n1", "n1", "n2", "n2"], strict=True)]
        refused = await api.client.bind_group(too_many, fence=fence)
        assert refused.outcome == CAPACITY
        assert [(await allocation(api.client, name)).status.in_use["pods"] for name in ("n1", "n2")] == ["0", "0"]
        bound = await api.client.bind_group(too_many[:3], fence=fence)
        assert (bound.outcome, [item.outcome for item in bound.results]) == (BOUND, [BOUND] * 3)
        revisions = {int(item.resource_version) >> 12 for item in bound.results}
        assert len(revisions) == 1
        assert (await api.client.bind_group(too_many[:3], fence=fence)).outcome == ALREADY_BOUND


async def test_a_node_that_shrank_takes_no_new_binds_until_it_fits_again(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client, cpu="4")
        for name in ("a", "b"):
            await api.client.bind(binding(await created(api.client, pod(name, cpu="1500m")), "n1"), fence=fence)
        await api.client.patch_status("nodes", "n1", "", {"allocatable": {"cpu": "2"}})
        assert (await allocation(api.client)).status.overcommitted
        extra = await created(api.client, pod("c", cpu="0"))
        assert (await api.client.bind(binding(extra, "n1"), fence=fence)).outcome == CAPACITY
        await api.client.delete("pods", "a", "default", grace_period_seconds=0)
        assert (await api.client.bind(binding(extra, "n1"), fence=fence)).outcome == BOUND


async def test_the_ledger_outlives_its_node_until_it_is_empty(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        fence = await lead(api.client)
        await ready_node(api.client)
        await api.client.bind(binding(await created(api.client, pod("a")), "n1"), fence=fence)
        await api.client.delete("nodes", "n1")
        assert (await allocation(api.client)).status.in_use["pods"] == "1"
        await api.client.delete("pods", "a", "default", grace_period_seconds=0)
        left = await etcd_store.list(b"/orrery/ledger/")
        assert left.records == ()


def test_a_fence_without_a_lease_is_none() -> None:
    assert not Fence().lease
