"""Fixtures that several folders share: one real etcd for the whole run, and stores with an empty keyspace on it."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

from apiserver.store.etcd import EtcdStore
from apiserver.store.memory import MemoryStore
from apiserver.store.protocol import Store
from protos.orrery.etcd.v1 import etcd_pb2 as pb
from services.lab.etcd import EtcdOptions, EtcdProcess, Version, find_etcd


@dataclass(frozen=True)
class Etcd:
    """A running etcd of the tests; `endpoint` is host:port."""

    endpoint: str
    version: Version


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A real etcd of one member, with the lab's limits. Tests share it: `etcd_endpoint` empties it first."""
    folder = tmp_path_factory.mktemp("etcd")
    process = EtcdProcess(find_etcd(), EtcdOptions(folder / "data", folder / "etcd.log", fsync=False))
    process.start()
    yield Etcd(process.endpoint, process.binary.version)
    process.stop(discard=True)


@pytest.fixture
async def etcd_endpoint(etcd: Etcd) -> str:
    """host:port of the shared etcd, its keyspace empty (its revision goes on from what earlier tests left)."""
    await empty_keyspace(etcd.endpoint)
    return etcd.endpoint


async def empty_keyspace(endpoint: str) -> None:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        delete_range = channel.unary_unary(
            "/etcdserverpb.KV/DeleteRange",
            request_serializer=pb.DeleteRangeRequest.SerializeToString,
            response_deserializer=pb.DeleteRangeResponse.FromString,
        )
        await delete_range(pb.DeleteRangeRequest(key=b"\0", range_end=b"\0"), timeout=10)


@pytest.fixture
async def etcd_store(etcd_endpoint: str) -> AsyncIterator[EtcdStore]:
    store = EtcdStore([etcd_endpoint])
    yield store
    await store.close()


@pytest.fixture
async def memory_store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


@pytest.fixture(params=["memory", "etcd"])
def store(request: pytest.FixtureRequest) -> Store:
    """Either store: what passes on one has to pass on the other."""
    filled: Store = request.getfixturevalue(f"{request.param}_store")
    return filled


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"
