"""How processes are started, and what is shown of their logs."""

from pathlib import Path

from services.lab.state import MeshFolder, MeshOptions
from services.lab.supervisor import command_line, log_tail, plan, readable


def test_a_plan_has_every_process_on_a_port_of_its_own() -> None:
    record = plan("alpha", MeshOptions(apiservers=2, schedulers=3))
    assert [process.name for process in record.processes] == [
        "etcd",
        "tracestore",
        "apiserver-0",
        "apiserver-1",
        "scheduler-0",
        "scheduler-1",
        "scheduler-2",
        "kubelet-sim-0",
    ]
    ports = [process.port for process in record.processes] + [process.peer_port for process in record.processes[:2]]
    assert len(set(ports)) == 10
    assert all(ports)
    assert not record.running


def test_processes_are_told_of_those_below_them(tmp_path: Path) -> None:
    record = plan("alpha", MeshOptions(fleet="dgx-h100=2", seed=7))
    folder = MeshFolder(tmp_path, "alpha")
    by_name = {process.name: command_line(process, record, folder) for process in record.processes[1:]}
    assert after(by_name["apiserver-0"], "--etcd") == record.process("etcd").address
    both = ",".join(record.addresses("apiserver"))
    assert after(by_name["scheduler-0"], "--apiserver") == after(by_name["kubelet-sim-0"], "--apiserver") == both
    assert after(by_name["kubelet-sim-0"], "--fleet") == "dgx-h100=2"
    assert after(by_name["kubelet-sim-0"], "--seed") == "7"
    assert after(by_name["scheduler-1"], "--listen") == record.process("scheduler-1").address
    store = by_name.pop("tracestore")
    assert after(store, "--query-listen") == f"127.0.0.1:{record.process('tracestore').peer_port}"
    assert after(store, "--database") == str(folder.traces_path)
    assert {after(command, "--trace-store") for command in by_name.values()} == {str(folder.traces_path)}


def test_a_mesh_without_machines_names_no_fleet(tmp_path: Path) -> None:
    record = plan("alpha", MeshOptions(fleet=""))
    assert "--fleet" not in command_line(record.process("kubelet-sim-0"), record, MeshFolder(tmp_path, "alpha"))


def after(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_a_log_line_is_readable() -> None:
    line = (
        '{"process": "s", "lease": "a/b", "event": "leading", "level": "info", "time": "2026-12-01T09:45:53.123456Z"}'
    )
    assert readable(line) == "09:45:53.123 info    leading lease=a/b"


def test_an_exception_follows_its_line() -> None:
    line = '{"event": "failed", "level": "error", "time": "2026-12-01T09:45:53.123456Z", "exception": "Traceback\\nX"}'
    assert readable(line).splitlines()[1:] == ["Traceback", "X"]


def test_what_is_no_json_is_shown_as_it_is() -> None:
    assert [readable(text) for text in ("Traceback:", "[1]", "{")] == ["Traceback:", "[1]", "{"]


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    assert log_tail(path, lines=2) == "line 98\nline 99"
    assert log_tail(tmp_path / "none") == "(no log)"
    path.write_text("")
    assert log_tail(path) == "(its log is empty)"
