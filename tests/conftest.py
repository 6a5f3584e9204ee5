"""Fixtures that several folders use: a real etcd for the whole session, and stores on an empty keyspace."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from apiserver.store.etcd import EtcdStore, wait_until_answering
from apiserver.store.memory import MemoryStore
from apiserver.store.protocol import Store
from protos.orrery.etcd.v1 import etcd_pb2
from services.lab.etcd import find_etcd, free_port, start_etcd, stop_process


@dataclass(frozen=True)
class Etcd:
    """A running etcd of the tests."""

    endpoint: str
    version: tuple[int, int, int]


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One real etcd for all tests; each test empties it first through `etcd_store`."""
    directory = tmp_path_factory.mktemp("etcd")
    binary = find_etcd()
    port = free_port()
    process = start_etcd(binary, directory / "data", directory / "etcd.log", port, free_port(), fsync=False)
    try:
        asyncio.run(_wait(f"127.0.0.1:{port}"))
        yield Etcd(f"127.0.0.1:{port}", binary.version)
    finally:
        stop_process(process.pid)
        process.wait()


async def _wait(endpoint: str) -> None:
    store = EtcdStore([endpoint])
    await wait_until_answering(store, attempts=100, pause_seconds=0.1)
    await store.close()


@pytest.fixture
async def etcd_store(etcd: Etcd) -> AsyncIterator[EtcdStore]:
    """A client of the session's etcd, whose keyspace has just been emptied."""
    store = EtcdStore([etcd.endpoint])
    wipe = etcd_pb2.RequestOp(request_delete_range=etcd_pb2.DeleteRangeRequest(key=b"\0", range_end=b"\0"))
    request = etcd_pb2.TxnRequest(success=[wipe])
    await store._calls.call("KV/Txn", request, etcd_pb2.TxnResponse, writes=True)
    yield store
    await store.close()


@pytest.fixture
def memory_store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(params=["memory", "etcd"])
def store(request: pytest.FixtureRequest) -> Store:
    """Both fillings of the seam, one after the other."""
    filled: Store = request.getfixturevalue(f"{request.param}_store")
    return filled


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"
