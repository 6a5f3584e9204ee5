"""Meshes that begin and end: two side by side, ports that are taken, and the demo on every way out."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.lab_mesh import Lab, wait_until

pytestmark = pytest.mark.integration
SMALL = ("--no-fsync", "--nodes", "0", "--apiservers", "1", "--schedulers", "0")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "home")
    yield made
    for context in ("default", "other"):
        replace(made, context=context).orrery("down", "--purge")
    assert not made.processes()


def test_two_meshes_run_side_by_side_and_each_ends_alone(lab: Lab) -> None:
    other = replace(lab, context="other")
    lab.good("up", *SMALL)
    other.good("up", *SMALL)
    ports = [process.port for each in (lab, other) for process in each.record.processes]
    assert len(set(ports)) == 8
    listed = lab.good("status", "--all").split("\n")
    assert listed[:2] == ["default  4 processes run", "other  4 processes run"]
    lab.good("apply", "-f", "-", stdin="apiVersion: v1\nkind: Namespace\nmetadata: {name: only-here}\n")
    assert other.orrery("get", "ns", "only-here").code == 1
    assert "its state is removed" in lab.good("down", "--purge")
    assert not lab.folder.path.exists()
    assert len(other.record.running) == 4
    stopped = other.good("down")
    assert stopped == "stopped tracestore, apiserver-0, kubelet-sim-0, etcd\n"
    assert not lab.processes()
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_mesh_that_was_stopped_goes_on_with_what_it_held(lab: Lab) -> None:
    lab.good("up", *SMALL)
    lab.good("apply", "-f", "-", stdin="apiVersion: v1\nkind: Namespace\nmetadata: {name: kept}\n")
    lab.good("down")
    lab.good("up")
    assert lab.json("ns", "kept")["metadata"]["name"] == "kept"
    assert len(lab.record.processes) == 4


def test_a_port_that_another_program_took_is_named_while_the_mesh_runs_and_replaced_when_it_does_not(lab: Lab) -> None:
    lab.good("up", *SMALL)
    lab.good("kill", "apiserver-0")
    port = lab.record.process("apiserver-0").port
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        said = lab.orrery("up")
        assert said.code == 1
        assert f"port {port} of apiserver-0 is taken by another program" in said.err
        lab.good("down")
        lab.good("up")
    assert lab.record.process("apiserver-0").port != port


def test_a_mesh_that_cannot_start_leaves_nothing_and_shows_the_log(lab: Lab) -> None:
    broken = replace(lab, more=(("ORRERY_APISERVER_COMPACTION_SECONDS", "-1"),))
    said = broken.orrery("up", *SMALL)
    assert said.code == 1
    assert "apiserver-0 ended as soon as it was started" in said.err
    assert "--compaction-seconds must not be negative" in said.err
    assert not lab.processes()


def test_the_demo_shows_pods_reason_and_trace_and_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "services.lab", "demo"],
        capture_output=True,
        text=True,
        check=False,
        env={**lab.environment, "TMPDIR": str(tmp_path / "scratch")},
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for wanted in (
        "trainer-8x",
        "dgx-h100-0",
        "NV18 x 28",
        "too-big",
        "Insufficient nvidia.com/gpu",
        "└─",
        "orrery trace",
    ):
        assert wanted in done.stdout
    assert not lab.processes()
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_cleans_up_when_it_is_interrupted(lab: Lab, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "scratch").mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "services.lab", "demo"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**lab.environment, "TMPDIR": str(tmp_path / "scratch")},
    ) as demo:
        wait_until(lambda: len(lab.processes()) > 4, "the demo's processes run")
        demo.send_signal(number)
        _, said = demo.communicate(timeout=60)
    assert demo.returncode == 130, said
    assert not lab.processes()
    assert not list((tmp_path / "scratch").iterdir())
