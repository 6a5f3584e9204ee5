"""`python -m kubelet_sim` as a process: what it prints, what it refuses, and SIGKILL in the middle of its work."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import ApiClient
from services.runtime.grpc_transport import GrpcTransport
from tests.direct import lead
from tests.integration.test_kubelet_shell import objects_when, pods_in, run_on

LINES_MAX = 200


@contextmanager
def process(module: str, *options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The process and the address that it listens on; killed when the block ends."""
    command = [sys.executable, "-m", module, "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started, address_of(started)
        finally:
            started.kill()
            started.communicate(timeout=10)


def address_of(started: "subprocess.Popen[str]") -> str:
    assert started.stderr is not None
    for line, _ in zip(started.stderr, range(LINES_MAX), strict=False):
        record = json.loads(line)
        if record["event"] == "listening":
            return str(record["address"])
    raise AssertionError("it did not say where it listens")


async def test_a_kubelet_that_is_killed_and_started_again_goes_on(etcd_endpoint: str) -> None:
    with process("apiserver", "--name", "apiserver-0", "--etcd", etcd_endpoint) as (_, apiserver):
        channel = GrpcTransport(random.Random(0)).connect([apiserver], caller="test")
        client = ApiClient(channel)
        options = ("--name", "kubelet-sim-0", "--apiserver", apiserver, "--fleet", "cpu-16=2", "--speed", "20")
        fence = None
        with process("kubelet_sim", *options) as (kubelet, _):
            await objects_when(client, "nodes", Node, lambda found: len(found) == 2)
            fence = await lead(client)
            for number in range(20):
                await run_on(client, fence, f"p{number}", f"cpu-16-{number % 2}", run_seconds="200")
            await pods_in(client, "Running", "p0")
            kubelet.send_signal(signal.SIGKILL)
        await run_on(client, fence, "late", "cpu-16-0", run_seconds="20")
        with process("kubelet_sim", *options):
            names = [f"p{number}" for number in range(20)]
            found = await pods_in(client, "Succeeded", *names, "late")
        assert len(found) == 21
        assert all(
            isinstance(pod, Pod) and pod.status.container_statuses[0].restart_count == 0 for pod in found.values()
        )
        await channel.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fleet", "dgx-h900=1"], "--fleet: 'dgx-h900' is no shape; there are a10-1, cpu-16"),
        (["--fleet", "dgx-h100"], "--fleet: 'dgx-h100' is not shape=count, such as dgx-h100=2"),
        (["--speed", "0"], "--speed 0.0 is not a positive number"),
        (["--lease-renew-seconds", "30"], "--lease-renew-seconds 30.0 must be positive and at most half of"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(options: list[str], message: str) -> None:
    command = [sys.executable, "-m", "kubelet_sim", "--name", "k", "--apiserver", "127.0.0.1:1", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
