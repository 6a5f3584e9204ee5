"""Objects through the API server on a real etcd: writes, versions, lists in pages, watches."""

import asyncio
from collections.abc import Sequence

import pytest

from apiserver.core.versions import revision_of
from apiserver.store.etcd import EtcdStore
from protos.orrery.v1.api_pb2 import (
    ADDED,
    DELETED,
    ERROR,
    MODIFIED,
    Fence,
    ListRequest,
    ListResponse,
    Operation,
    WatchEvent,
)
from protos.orrery.v1.namespace_pb2 import Namespace
from protos.orrery.v1.pod_pb2 import Pod
from protos.orrery.v1.priority_class_pb2 import PriorityClass
from services.client.api import ApiClient
from services.model.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Expired,
    Fenced,
    Forbidden,
    Invalid,
    NotFound,
)
from services.runtime.status import error_of
from tests.conftest import Etcd
from tests.direct import api_servers, lead, node, pod, take_over


def create_operations(pods: Sequence[Pod]) -> list[Operation]:
    operations = []
    for made in pods:
        operation = Operation()
        operation.create.resource, operation.create.value = "pods", made.SerializeToString()
        operations.append(operation)
    return operations


async def events(client: ApiClient, version: str, count: int, **selectors: str) -> list[WatchEvent]:
    """The first `count` events of pods after `version`."""
    found: list[WatchEvent] = []
    async with asyncio.timeout(10):
        async for response in client.watch("pods", resource_version=version, **selectors):  # type: ignore[arg-type]
            found.extend(response.events)
            if len(found) >= count:
                return found
    raise AssertionError("the watch ended")


def names(found: Sequence[WatchEvent]) -> list[str]:
    return [Pod.FromString(event.value).metadata.name for event in found]


async def test_a_new_pod_has_what_the_server_gives_it(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        given = pod("", gpus=1)
        given.metadata.generate_name = "job-"
        given.metadata.uid = "mine"
        given.status.phase = "Running"
        answer = await api.client.create("pods", given, traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
        made = Pod.FromString(answer.object.value)
        assert made.metadata.name.startswith("job-")
        assert len(made.metadata.name) == len("job-") + 5
        assert made.metadata.uid != "mine"
        assert (made.status.phase, made.status.qos_class) == ("Pending", "Burstable")
        assert (made.spec.restart_policy, made.spec.scheduler_name) == ("Always", "default-scheduler")
        assert made.spec.containers[0].resources.requests["nvidia.com/gpu"] == "1"
        assert made.metadata.annotations["orrery.dev/traceparent"].startswith("00-aaaa")
        assert not made.metadata.resource_version


async def test_a_name_is_given_once(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        await api.client.create("pods", pod("a"))
        with pytest.raises(AlreadyExists, match='pods "a" already exists'):
            await api.client.create("pods", pod("a"))


async def test_a_namespace_must_be_there(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        stray = pod("a")
        stray.metadata.namespace = "nowhere"
        with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
            await api.client.create("pods", stray)
        made = Namespace()
        made.metadata.name = "nowhere"
        await api.client.create("namespaces", made)
        await api.client.create("pods", stray)
        with pytest.raises(Conflict, match="still has 1 pods"):
            await api.client.delete("namespaces", "nowhere")
        with pytest.raises(Forbidden):
            await api.client.delete("namespaces", "kube-system")


async def test_a_wrong_pod_is_refused_with_every_path(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        wrong = pod("a", cpu="-1")
        wrong.spec.restart_policy = "Sometimes"
        wrong.spec.containers.add(name="main")
        with pytest.raises(Invalid) as caught:
            await api.client.create("pods", wrong)
        fields = {cause.field for cause in caught.value.causes}
        assert fields == {
            "spec.containers[0].resources.requests[cpu]",
            "spec.containers[1].name",
            "spec.containers[1].image",
            "spec.restartPolicy",
        }
        mixed = pod("b", gpus=1, gpu_milli=300)
        with pytest.raises(Invalid, match="whole GPUs or shares, not both"):
            await api.client.create("pods", mixed)


async def test_an_update_names_the_version_that_it_rests_on(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        first = await api.client.create("pods", pod("a"))
        edited = Pod.FromString(first.object.value)
        edited.metadata.labels["app"] = "web"
        second = await api.client.update("pods", edited, resource_version=first.object.resource_version)
        with pytest.raises(Conflict) as caught:
            await api.client.update("pods", edited, resource_version=first.object.resource_version)
        assert caught.value.resource_version == second.object.resource_version
        edited.metadata.labels["app"] = "api"
        await api.client.update("pods", edited)
        stored = await api.client.get("pods", "a", "default")
        assert Pod.FromString(stored.value).metadata.labels["app"] == "api"


async def test_an_update_that_changes_nothing_writes_nothing(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        first = await api.client.create("pods", pod("a"))
        same = await api.client.update("pods", Pod.FromString(first.object.value))
        assert same.object.resource_version == first.object.resource_version


async def test_spec_and_status_do_not_write_each_other(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        made = Pod.FromString((await api.client.create("pods", pod("a"))).object.value)
        made.status.phase = "Running"
        made.metadata.labels["x"] = "1"
        updated = Pod.FromString((await api.client.update("pods", made)).object.value)
        assert (updated.status.phase, updated.metadata.labels["x"]) == ("Pending", "1")
        made.metadata.labels["x"] = "2"
        stated = Pod.FromString((await api.client.update_status("pods", made)).object.value)
        assert (stated.status.phase, stated.metadata.labels["x"]) == ("Running", "1")


async def test_a_pods_spec_stands(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        made = Pod.FromString((await api.client.create("pods", pod("a"))).object.value)
        made.spec.containers[0].image = "example/app:2"
        await api.client.update("pods", made)
        made.spec.node_name = "n1"
        with pytest.raises(Invalid, match=r"changed: spec\.nodeName"):
            await api.client.update("pods", made)


async def test_a_terminal_phase_never_reverts(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        await api.client.create("pods", pod("a"))
        await api.client.patch_status("pods", "a", "default", {"phase": "Failed", "reason": "Evicted"})
        with pytest.raises(Invalid, match=r"status\.phase"):
            await api.client.patch_status("pods", "a", "default", {"phase": "Running"})
        stored = Pod.FromString((await api.client.get("pods", "a", "default")).value)
        assert (stored.status.phase, stored.status.reason) == ("Failed", "Evicted")


async def test_two_writers_of_conditions_keep_each_others(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        await api.client.create("pods", pod("a"))
        for kind in ("PodScheduled", "Ready"):
            await api.client.patch_status("pods", "a", "default", {"conditions": [{"type": kind, "status": "True"}]})
        stored = Pod.FromString((await api.client.get("pods", "a", "default")).value)
        assert [condition.type for condition in stored.status.conditions] == ["PodScheduled", "Ready"]
        with pytest.raises(Invalid, match=r"status\.phaze"):
            await api.client.patch_status("pods", "a", "default", {"phaze": "Running"})


async def test_a_bound_pod_goes_with_grace_and_an_unbound_one_at_once(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        await api.client.create("nodes", node("n1"))
        await api.client.create("pods", pod("bound", node="n1", grace=10))
        await api.client.create("pods", pod("free"))
        answer = await api.client.delete("pods", "bound", "default")
        assert answer.terminating
        going = Pod.FromString((await api.client.get("pods", "bound", "default")).value)
        assert going.metadata.deletion_grace_period_seconds == 10
        await api.client.delete("pods", "bound", "default", grace_period_seconds=0, uid=going.metadata.uid)
        await api.client.delete("pods", "free", "default")
        for name in ("bound", "free"):
            with pytest.raises(NotFound):
                await api.client.get("pods", name, "default")


async def test_a_deletion_has_preconditions_and_finalizers_hold_it(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        held = pod("a")
        held.metadata.finalizers.append("example.com/hold")
        made = Pod.FromString((await api.client.create("pods", held)).object.value)
        with pytest.raises(Conflict, match="UID in precondition"):
            await api.client.delete("pods", "a", "default", uid="another")
        with pytest.raises(Conflict, match="ResourceVersion in precondition"):
            await api.client.delete("pods", "a", "default", resource_version="1")
        assert (await api.client.delete("pods", "a", "default", uid=made.metadata.uid)).terminating
        going = Pod.FromString((await api.client.get("pods", "a", "default")).value)
        going.metadata.ClearField("finalizers")
        await api.client.update("pods", going)
        with pytest.raises(NotFound):
            await api.client.get("pods", "a", "default")


async def test_priority_comes_from_the_class(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        high = PriorityClass(value=1000, preemption_policy="Never")
        high.metadata.name = "high"
        await api.client.create("priorityclasses", high)
        wanted = pod("a")
        wanted.spec.priority_class_name = "high"
        made = Pod.FromString((await api.client.create("pods", wanted)).object.value)
        assert (made.spec.priority, made.spec.preemption_policy) == (1000, "Never")
        wanted.metadata.name, wanted.spec.priority_class_name = "b", "none"
        with pytest.raises(Forbidden, match="no PriorityClass with name none was found"):
            await api.client.create("pods", wanted)


async def test_a_fence_of_an_old_epoch_stops_any_write(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        old = await lead(api.client)
        await api.client.create("pods", pod("a"))
        new = await take_over(api.client, "scheduler-b")
        assert new.token > old.token
        with pytest.raises(Fenced):
            await api.client.patch_status("pods", "a", "default", {"nominatedNodeName": "n1"}, fence=old)
        await api.client.patch_status("pods", "a", "default", {"nominatedNodeName": "n1"}, fence=new)
        with pytest.raises(Fenced):
            await api.client.create("pods", pod("b"), fence=Fence(lease="kube-system/no-such", token=7))


async def test_a_batch_answers_each_operation_for_itself(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        results = await api.client.batch(create_operations([pod("a"), pod("B!"), pod("a"), pod("c")]))
        kinds = [item.WhichOneof("result") for item in results]
        assert kinds == ["done", "status", "status", "done"]
        assert [type(error_of(results[at].status)) for at in (1, 2)] == [Invalid, AlreadyExists]


async def test_unknown_resources_and_views_are_told_apart(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        with pytest.raises(BadRequest, match="there is no resource 'podz'"):
            await api.client.get("podz", "a", "default")
        with pytest.raises(BadRequest, match="position"):
            await api.client.list("pods", label_selector="app in web")
        with pytest.raises(BadRequest, match=r"spec\.color"):
            await api.client.list("pods", field_selector="spec.color=red")
        with pytest.raises(Forbidden, match="view"):
            await api.client.delete("nodeallocations", "n1")


async def page(client: ApiClient, limit: int, token: str = "") -> ListResponse:
    request = ListRequest(resource="pods", limit=limit)
    setattr(request, "continue", token)
    return await client._call("List", request, ListResponse)


async def test_pages_show_the_cluster_as_it_was_at_the_first(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        await api.client.batch(create_operations([pod(f"p{n}") for n in range(7)]))
        first = await page(api.client, 3)
        await api.client.delete("pods", "p4", "default")
        await api.client.create("pods", pod("p35"))
        second = await page(api.client, 3, getattr(first, "continue"))
        third = await page(api.client, 3, getattr(second, "continue"))
        listed = [Pod.FromString(item.value).metadata.name for part in (first, second, third) for item in part.items]
        assert listed == [f"p{n}" for n in range(7)]
        assert {part.resource_version for part in (first, second, third)} == {first.resource_version}
        assert (first.remaining_item_count, getattr(third, "continue")) == (4, "")


async def test_a_page_whose_version_is_compacted_has_expired(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        await api.client.batch(create_operations([pod(f"p{n}") for n in range(4)]))
        first = await page(api.client, 2)
        await api.client.create("pods", pod("later"))
        assert await api.service.compactor.compact(await etcd_store.revision())
        with pytest.raises(Expired):
            await page(api.client, 2, getattr(first, "continue"))
        with pytest.raises(BadRequest, match="continue key is not valid"):
            await page(api.client, 2, "rubbish")


async def test_selectors_choose(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        for name, app in (("a", "web"), ("b", "api"), ("c", "web")):
            made = pod(name)
            made.metadata.labels["app"] = app
            await api.client.create("pods", made)
        await api.client.patch_status("pods", "c", "default", {"phase": "Running"})
        for selectors, wanted in (
            ({"label_selector": "app=web"}, ["a", "c"]),
            ({"label_selector": "app notin (web)"}, ["b"]),
            ({"field_selector": "status.phase=Pending"}, ["a", "b"]),
            ({"label_selector": "app=web", "field_selector": "metadata.name!=a"}, ["c"]),
        ):
            items, _ = await api.client.list("pods", **selectors)
            assert [Pod.FromString(item.value).metadata.name for item in items] == wanted


async def test_a_watch_resumes_in_the_middle_of_a_transaction(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        _, start = await api.client.list("pods")
        await api.client.batch(create_operations([pod(f"p{n}") for n in range(5)]))
        whole = await events(api.client, start, 5)
        revisions = {revision_of(int(event.resource_version)) for event in whole}
        assert len(revisions) < 5, "the creations shared a transaction"
        for cut in range(5):
            rest = await events(api.client, whole[cut].resource_version, 4 - cut) if cut < 4 else []
            assert names(rest) == names(whole)[cut + 1 :]


async def test_a_watch_tells_each_change_in_order(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        _, start = await api.client.list("pods")
        await api.client.create("pods", pod("a"))
        await api.client.patch_status("pods", "a", "default", {"phase": "Running"})
        await api.client.delete("pods", "a", "default")
        found = await events(api.client, start, 3)
        assert [event.type for event in found] == [ADDED, MODIFIED, DELETED]
        versions = [int(event.resource_version) for event in found]
        assert versions == sorted(set(versions))
        assert Pod.FromString(found[2].value).status.phase == "Running"


async def test_an_object_that_leaves_the_selector_is_deleted_for_its_watcher(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        _, start = await api.client.list("pods")
        made = Pod.FromString((await api.client.create("pods", pod("a"))).object.value)
        for app in ("web", "api", "web"):
            made.metadata.labels["app"] = app
            await api.client.update("pods", made)
        found = await events(api.client, start, 3, label_selector="app=web")
        assert [event.type for event in found] == [ADDED, DELETED, ADDED]


async def test_a_watch_from_before_a_compaction_has_expired(etcd_store: EtcdStore) -> None:
    async with api_servers([etcd_store]) as (api,):
        _, start = await api.client.list("pods")
        await api.client.create("pods", pod("a"))
        await api.client.create("pods", pod("b"))
        assert await api.service.compactor.compact(await etcd_store.revision())
        (event,) = await events(api.client, start, 1)
        assert (event.type, event.status.code, event.status.reason) == (ERROR, 410, "Expired")
        _, fresh = await api.client.list("pods")
        await api.client.create("pods", pod("c"))
        assert names(await events(api.client, fresh, 1)) == ["c"]


async def test_two_servers_give_every_event_the_same_version(etcd: Etcd, etcd_store: EtcdStore) -> None:
    """Also deletes, whose place in their transaction stands nowhere and follows from the others'."""
    other = EtcdStore([etcd.endpoint])
    async with api_servers([etcd_store, other]) as (first, second):
        _, start = await first.client.list("pods")
        await first.client.batch(create_operations([pod(f"p{n}") for n in range(20)]))
        deletions = [second.client.delete("pods", f"p{n}", "default") for n in range(0, 20, 2)]
        patches = [first.client.patch_status("pods", f"p{n}", "default", {"phase": "Running"}) for n in range(1, 20, 2)]
        answers = await asyncio.gather(*deletions, *patches)
        seen = [
            [(event.type, event.resource_version, names([event])[0]) for event in await events(api.client, start, 40)]
            for api in (first, second)
        ]
        assert seen[0] == seen[1]
        assert {answer.object.resource_version for answer in answers} == {version for _, version, _ in seen[0][20:]}
    await other.close()


async def test_a_read_is_as_fresh_as_the_last_write_through_the_other_server(etcd: Etcd, etcd_store: EtcdStore) -> None:
    other = EtcdStore([etcd.endpoint])
    async with api_servers([etcd_store, other]) as (first, second):
        for number in range(20):
            await first.client.create("pods", pod(f"p{number}"))
            items, _ = await second.client.list("pods")
            assert len(items) == number + 1
    await other.close()
