"""The API server's spans: each transaction with what its comparisons saw, and what is kept by rule."""

from apiserver.core.keys import taken_key
from apiserver.store.memory import MemoryStore
from apiserver.store.protocol import Member, Put, TxnResult
from protos.orrery.v1.api_pb2 import BOUND, FENCED, Binding, BindResult, Fence
from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import ApiClient
from tests.direct import api_servers, lead, node, pod, take_over
from tests.unit.telemetry.spans import SAMPLED, UNSAMPLED, Kept, kept_spans


class Meddling(MemoryStore):
    """Before the next transaction that writes the ledger of n1, somebody else writes it."""

    meddles = False

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        key = taken_key("n1")
        if self.meddles and any(getattr(write, "key", b"") == key for member in members for write in member.writes):
            self.meddles = False
            record = await self.get(key)
            assert record is not None
            await super().txn((Member((), (Put(key, record.value),), ()),))
        return await super().txn(members)


async def bind(client: ApiClient, name: str, fence: Fence, traceparent: str) -> BindResult:
    made = Pod.FromString((await client.create("pods", pod(name))).object.value)
    binding = Binding(namespace="default", name=name, uid=made.metadata.uid, node_name="n1", traceparent=traceparent)
    return await client.bind(binding, fence=fence)


def transactions(spans: Kept) -> list[list[str]]:
    return [
        [said.rpartition(": ")[2] for said in span.attributes["orrery.etcd.comparisons"]]  # type: ignore[index, union-attr]
        for span in spans.spans
        if span.name == "etcd.txn"
    ]


async def test_a_creation_shows_its_transaction() -> None:
    async with api_servers([MemoryStore()]) as (api,):
        made = pod("a")
        made.metadata.annotations["orrery.dev/traceparent"] = SAMPLED
        with kept_spans() as spans:
            await api.client.create("pods", made)
    assert spans.tree() == {"apiserver.create": "", "etcd.txn": "apiserver.create"}
    attributes = spans.one("etcd.txn").attributes
    assert attributes is not None and attributes["db.system.name"] == "etcd"
    said = attributes["orrery.etcd.comparisons"]
    assert isinstance(said, list)
    assert said == ["pods default/a create_revision = 0: held", "namespaces default mod_revision > 0: held"]


async def test_a_bind_that_lost_a_comparison_shows_which() -> None:
    store = Meddling()
    async with api_servers([store]) as (api,):
        fence = await lead(api.client)
        await api.client.create("nodes", node("n1"))
        store.meddles = True
        with kept_spans() as spans:
            assert (await bind(api.client, "a", fence, SAMPLED)).outcome == BOUND
    first, second = transactions(spans)
    assert first == ["held", "held", "lost"], "pod, epoch, ledger"
    assert second == ["held", "held", "held"]
    attributes = spans.one("apiserver.bind").attributes
    assert attributes is not None
    assert attributes["orrery.bind.transactions"] == 2 and attributes["orrery.fencing_token"] == fence.token


async def test_a_fenced_bind_is_kept_whatever_the_ratio_and_a_good_one_is_not() -> None:
    async with api_servers([MemoryStore()]) as (api,):
        fence = await lead(api.client)
        await api.client.create("nodes", node("n1"))
        with kept_spans() as spans:
            assert (await bind(api.client, "a", fence, UNSAMPLED)).outcome == BOUND
            assert not spans.spans
            await take_over(api.client, "scheduler-b")
            assert (await bind(api.client, "b", fence, UNSAMPLED)).outcome == FENCED
    span = spans.one("apiserver.bind")
    assert span.attributes is not None and span.attributes["orrery.bind.outcome"] == "FENCED"
    assert span.status.description is not None and span.status.description.startswith("FENCED: ")
