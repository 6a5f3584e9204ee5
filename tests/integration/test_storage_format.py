"""A store of another format is refused before anything is written; one that is not there yet is waited for."""

import asyncio
import subprocess
import sys

import pytest

from apiserver.core.keys import FORMAT
from apiserver.storage_format import STORAGE_FORMAT, check_format
from apiserver.store.etcd import EtcdStore
from apiserver.store.memory import MemoryStore
from apiserver.store.protocol import Member, Put, Record, StoreUnavailable
from services.runtime.clock import RealClock
from services.runtime.logging import silent
from tests.conftest import Etcd


class Late(MemoryStore):
    """Answers from the third call on."""

    calls = 0

    async def get(self, key: bytes, *, revision: int = 0) -> Record | None:
        self.calls += 1
        if self.calls < 3:
            raise StoreUnavailable("no quorum yet")
        return await super().get(key, revision=revision)


class Impatient(RealClock):
    async def sleep(self, seconds: float) -> None:
        await super().sleep(0)


async def test_an_empty_store_gets_the_format_once_it_answers_and_keeps_it() -> None:
    store = Late()
    for _ in range(2):
        await check_format(store, Impatient(), silent())
    record = await store.get(FORMAT)
    assert record is not None and record.value == str(STORAGE_FORMAT).encode()
    assert record.create_revision == record.mod_revision, "written once"


async def test_another_format_is_refused() -> None:
    store = MemoryStore()
    await store.txn((Member((), (Put(FORMAT, b"7"),), ()),))
    with pytest.raises(
        OSError, match="storage format '7', and this version of Orrery reads 1: run the version that wrote"
    ):
        await check_format(store, Impatient(), silent())


async def test_an_api_server_ends_with_one_sentence(etcd: Etcd, etcd_store: EtcdStore) -> None:
    await etcd_store.txn((Member((), (Put(FORMAT, b"7"),), ()),))
    command = [sys.executable, "-m", "apiserver", "--name", "a", "--etcd", etcd.endpoint]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "etcd holds data of storage format '7'" in done.stderr and "Traceback" not in done.stderr
