"""The lab's memory of a mesh: records, pids that count, locks, names."""

import json
import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from services.lab.errors import LabError
from services.lab.state import MeshFolder, MeshOptions, MeshRecord, ProcessRecord, home_folder, meshes


@pytest.fixture
def folder(tmp_path: Path) -> MeshFolder:
    made = MeshFolder(tmp_path / "home", "alpha")
    made.make()
    return made


def record() -> MeshRecord:
    return MeshRecord(
        "alpha",
        MeshOptions(fleet="dgx-h100=2"),
        (
            ProcessRecord("etcd", 2379, peer_port=2380),
            ProcessRecord("apiserver-0", 6001),
            ProcessRecord("apiserver-1", 6002),
            ProcessRecord("kubelet-sim-0", 6003),
        ),
    )


def myself() -> ProcessRecord:
    return ProcessRecord("apiserver-0", 6001, os.getpid(), psutil.Process().create_time())


def test_a_record_reads_back_as_it_was_written(folder: MeshFolder) -> None:
    folder.write(record())
    assert folder.read() == record()
    assert meshes(folder.path.parent) == ["alpha"]


def test_no_record_is_none_and_not_an_error(tmp_path: Path) -> None:
    assert MeshFolder(tmp_path, "never").read() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 999}', '{"format": 1, "name": "x"}'])
def test_a_damaged_record_says_what_to_do(folder: MeshFolder, text: str) -> None:
    folder.record_path.write_text(text)
    with pytest.raises(LabError, match=r"is damaged .*orrery down --purge"):
        folder.read()


def test_a_record_with_an_option_of_another_version_is_damaged(folder: MeshFolder) -> None:
    folder.write(record())
    data = json.loads(folder.record_path.read_text())
    data["options"]["moons"] = 3
    folder.record_path.write_text(json.dumps(data))
    with pytest.raises(LabError, match="moons"):
        folder.read()


def test_this_very_process_is_alive() -> None:
    assert myself().alive()


def test_a_pid_that_belongs_to_a_later_process_is_not_ours() -> None:
    assert not replace(myself(), began=myself().began - 1).alive()


def test_a_process_that_was_never_started_is_not_alive() -> None:
    assert not ProcessRecord("etcd", 1).alive()


def test_programs_and_addresses_follow_from_the_names() -> None:
    made = record()
    assert [process.program for process in made.processes] == ["etcd", "apiserver", "apiserver", "kubelet-sim"]
    assert made.addresses("apiserver") == ["127.0.0.1:6001", "127.0.0.1:6002"]


def test_an_unknown_process_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(LabError, match="no process 'apiserver-7'; it has etcd, apiserver-0"):
        record().process("apiserver-7")


def test_only_the_changed_process_changes() -> None:
    changed = record().with_process(ProcessRecord("apiserver-1", 6002, pid=77))
    assert [process.pid for process in changed.processes] == [0, 0, 77, 0]


@pytest.mark.parametrize("name", ["", "Alpha", "a/b", "..", "-a", "a-", "a" * 41, "ä"])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LabError, match="cannot name a mesh"):
        MeshFolder(tmp_path, name)


def test_a_folder_that_cannot_be_written_names_the_variable_that_moves_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"not writable .*ORRERY_HOME"):
        MeshFolder(tmp_path / "file", "alpha").make()


def test_two_commands_do_not_change_one_mesh_at_once(folder: MeshFolder) -> None:
    other = MeshFolder(folder.path.parent, "alpha")
    with folder.lock(), pytest.raises(LabError, match="another orrery command"), other.lock():
        pass
    with other.lock():
        assert other.path.is_dir()


def test_purging_removes_everything_and_may_be_repeated(folder: MeshFolder) -> None:
    folder.write(record())
    folder.purge()
    folder.purge()
    assert not folder.path.exists()


def test_the_home_folder_is_the_one_that_was_named(tmp_path: Path) -> None:
    assert home_folder(str(tmp_path)) == tmp_path
