"""The witness on real etcd: it reads by itself, in pages, and ends with the code and the words that it should."""

import asyncio
import json
import subprocess
import sys

import pytest

from apiserver.store.etcd import EtcdStore
from apiserver.store.protocol import Member, Put
from services.lab.check import CheckError, CheckResult, run_check
from services.lab.etcd import free_port
from tests.stored_cluster import StoredCluster, make_pod, sound_cluster


async def stored(store: EtcdStore, cluster: StoredCluster) -> int:
    """Writes all of it; returns the revision."""
    return (await store.txn(tuple(Member((), (Put(key, value),)) for key, value in cluster.entries()))).revision


async def check(endpoint: str) -> CheckResult:
    return await asyncio.to_thread(run_check, endpoint)


async def test_a_sound_cluster_agrees(etcd_endpoint: str, etcd_store: EtcdStore) -> None:
    revision = await stored(etcd_store, sound_cluster())
    result = await check(etcd_endpoint)
    assert result.agrees, result.differences
    assert (result.revision, result.nodes, result.pods, result.comparisons) == (revision, 2, 5, 2)


async def test_a_cluster_of_many_pages_is_read_whole(etcd_endpoint: str, etcd_store: EtcdStore) -> None:
    cluster = sound_cluster()
    for number in range(1_203):
        cluster.pods[f"waits-{number:04d}"] = make_pod(f"waits-{number:04d}", {"cpu": "1", "nvidia.com/gpu": "9"})
    await stored(etcd_store, cluster)
    result = await check(etcd_endpoint)
    assert result.agrees, result.differences
    assert (result.pods, result.pending, result.requests) == (1_208, 1_204, 2)
    assert (result.comparisons, result.comparisons_covered) == (4, 2_408)


async def test_a_difference_is_printed_as_json_with_exit_code_1(etcd_endpoint: str, etcd_store: EtcdStore) -> None:
    cluster = sound_cluster()
    cluster.taken["cpu-0"].resources["cpu"] = 501
    await stored(etcd_store, cluster)
    command = [sys.executable, "-m", "services.lab.check_witness", f"--endpoint={etcd_endpoint}"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert [each["message"] for each in json.loads(done.stdout)["differences"]] == ["cpu: ledger 501, pods 500"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (b"/orrery/registry/core/pods/default/web", b"garbage", "unpack"),
        (b"/orrery/registry/core/pods/default/web", b"orr2" + b"\1\1" + bytes(18), "orr2"),
        (b"/orrery/registry/core/nodes/cpu-0", b"orr1" + b"\1\1" + bytes(18) + b"\xff\xff", "bytes"),
        (b"/orrery/ledger/cpu-0/taken", b"\xff\xff\xff", "ledger value"),
        (b"/orrery/ledger/cpu-0/lent", b"", "no half of a ledger"),
    ],
)
async def test_a_value_that_cannot_be_read_is_a_difference(
    etcd_endpoint: str, etcd_store: EtcdStore, key: bytes, value: bytes, words: str
) -> None:
    await stored(etcd_store, sound_cluster())
    await etcd_store.txn((Member((), (Put(key, value),)),))
    (first, *_) = (await check(etcd_endpoint)).differences
    assert (first.kind, first.subject) == ("unreadable value", key.decode())
    assert words in first.message


async def test_an_empty_etcd_is_a_failure(etcd_endpoint: str) -> None:
    result = await check(etcd_endpoint)
    assert {each.message for each in result.differences} == {"etcd holds no node", "etcd holds no pod"}


async def test_an_etcd_that_does_not_answer_is_said_in_a_sentence() -> None:
    with pytest.raises(CheckError, match=r"etcd at 127\.0\.0\.1:\d+ could not be read: .*is the mesh up\?"):
        await check(f"127.0.0.1:{free_port()}")


def test_the_witness_shares_no_store_code_with_the_mesh() -> None:
    program = "import sys, services.lab.check_witness; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "etcd3" in loaded
    assert not loaded & {"apiserver", "scheduler", "kubelet_sim"}
