"""Starts and stops the processes of a mesh.

Processes are detached: each has its own session, its standard streams are its log file, and it survives the command
that started it. What ties them to the lab is the record alone. `start_missing` starts what the record says should run
and does not, so the same call begins a mesh and mends one; ports stay what they were while anything of the mesh runs,
since the others have them on their command line.

etcd is started first and awaited; the rest start together, for on a small machine their imports are most of the time.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from services.lab.errors import LabError
from services.lab.etcd import (
    EtcdBinary,
    EtcdError,
    EtcdOptions,
    EtcdProcess,
    find_etcd,
    free_ports,
    port_is_taken,
)
from services.lab.state import MeshFolder, MeshOptions, MeshRecord, ProcessRecord

STOP_SECONDS_MAX = 6.0
LOG_TAIL_LINES = 12
LOG_TAIL_BYTES = 32 * 1024
_MODULES = {
    "tracestore": "services.tracestore",
    "apiserver": "apiserver",
    "scheduler": "scheduler",
    "kubelet-sim": "kubelet_sim",
}

Report = Callable[[str], None]


class ProcessDied(LabError):
    """A process of the mesh ended while it was being waited for; `tail` is the end of its log."""

    def __init__(self, process: str, log_path: Path) -> None:
        self.process = process
        self.tail = log_tail(log_path)
        super().__init__(f"{process} ended as soon as it was started; its log ends with:\n{self.tail}")


def plan(name: str, options: MeshOptions) -> MeshRecord:
    """The record of a mesh that does not run yet, with ports that are free at this moment."""
    names = [
        "etcd",
        "tracestore",
        *(f"apiserver-{index}" for index in range(options.apiservers)),
        *(f"scheduler-{index}" for index in range(options.schedulers)),
        "kubelet-sim-0",
    ]
    ports = free_ports(len(names) + 2)
    processes = [ProcessRecord(process, port) for process, port in zip(names, ports, strict=False)]
    # etcd's peers, and the trace store's query API.
    for at in (0, 1):
        processes[at] = replace(processes[at], peer_port=ports[-1 - at])
    return MeshRecord(name, options, tuple(processes))


class Supervisor:
    """Works on one mesh folder. `report` is told each step in a few words."""

    def __init__(self, folder: MeshFolder, report: Report = lambda _text: None) -> None:
        self.folder = folder
        self._report = report
        # Kept, so that what this very command started is reaped when it ends.
        self._children: dict[str, subprocess.Popen[bytes] | EtcdProcess] = {}

    def start_missing(self, record: MeshRecord) -> MeshRecord:
        """Starts every process of `record` that does not run and returns the new record, which is also written.

        Raises:
            LabError: no etcd, a port is taken, a folder cannot be written.
        """
        binary = find_etcd()
        record = self._with_usable_ports(record)
        self.folder.write(record)
        etcd = record.process("etcd")
        if not etcd.alive():
            started = self._start_etcd(binary, etcd, record.options)
            record = record.with_process(started)
            self.folder.write(record)
        for process in record.processes[1:]:
            if not process.alive():
                with uninterrupted():
                    record = record.with_process(self._start(process, record))
                    self.folder.write(record)
        return record

    def _with_usable_ports(self, record: MeshRecord) -> MeshRecord:
        """Chooses taken ports anew while nothing of the mesh runs. Raises LabError when something does."""
        anything = bool(record.running)
        for process in record.processes:
            if process.alive():
                continue
            taken = [port for port in (process.port, process.peer_port) if port and port_is_taken(port)]
            if not taken:
                continue
            if anything:
                raise LabError(
                    f"port {taken[0]} of {process.name} is taken by another program, and the rest of mesh "
                    f"{record.name!r} knows it there; stop that program, or run: orrery down, then: orrery up"
                )
            port, peer_port = free_ports(2)
            record = record.with_process(replace(process, port=port, peer_port=peer_port if process.peer_port else 0))
        return record

    def _start_etcd(self, binary: EtcdBinary, record: ProcessRecord, options: MeshOptions) -> ProcessRecord:
        self._report(f"etcd {binary.version_text} from {binary.source}")
        etcd = EtcdProcess(
            binary,
            EtcdOptions(
                self.folder.etcd_path,
                self.folder.log_path("etcd"),
                client_port=record.port,
                peer_port=record.peer_port,
                fsync=options.fsync,
            ),
        )
        pid = etcd.start()
        self._children["etcd"] = etcd
        return replace(record, pid=pid, began=_began(pid))

    def _start(self, process: ProcessRecord, record: MeshRecord) -> ProcessRecord:
        self._report(process.name)
        with self.folder.log_path(process.name).open("ab") as log:
            child = subprocess.Popen(
                command_line(process, record, self.folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder.path,
                env=_environment(),
            )
        self._children[process.name] = child
        return replace(process, pid=child.pid, began=_began(child.pid))

    def check_alive(self, record: MeshRecord) -> None:
        """Raises ProcessDied when one of the mesh's processes is gone."""
        for process in record.processes:
            if not process.alive():
                raise ProcessDied(process.name, self.folder.log_path(process.name))

    def stop(self, record: MeshRecord, *, discard: bool = False) -> list[str]:
        """Ends every process, etcd last, and returns the names of those that ran. `discard`: the state will not be
        read again, so etcd is not asked politely.
        """
        stopped = []
        others = [process for process in record.processes if process.name != "etcd"]
        for group in (others, list(record.of("etcd"))):
            running = [(process, found) for process in group if (found := process.find()) is not None]
            for process, _ in running:
                self._report(process.name)
                stopped.append(process.name)
            end([found for _, found in running], kill_at_once=discard and group is not others)
        self._reap()
        idle = replace(record, processes=tuple(replace(process, pid=0, began=0.0) for process in record.processes))
        self.folder.write(idle)
        return stopped

    def _reap(self) -> None:
        for child in self._children.values():
            if isinstance(child, subprocess.Popen):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(STOP_SECONDS_MAX)
            else:
                with contextlib.suppress(EtcdError, ProcessLookupError):
                    child.stop(seconds_max=STOP_SECONDS_MAX)
        self._children.clear()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds Ctrl-C back until the end of the block: between a process's start and its record nothing may come."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def end(
    processes: Iterable[psutil.Process], *, kill_at_once: bool = False, seconds_max: float = STOP_SECONDS_MAX
) -> None:
    """SIGTERM to all, then SIGKILL to those that are still there after `seconds_max`; returns when all are gone."""
    ending = list(processes)
    for process in ending:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL if kill_at_once else signal.SIGTERM)
            # A stopped process takes no SIGTERM.
            process.send_signal(signal.SIGCONT)
    left = _wait_gone(ending, seconds_max)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_gone(left, seconds_max)


def _wait_gone(processes: list[psutil.Process], seconds_max: float) -> list[psutil.Process]:
    """Those that are still there at the end. A zombie counts as gone: its parent reaps it."""
    deadline = time.monotonic() + seconds_max
    left = processes
    while left and time.monotonic() < deadline:
        left = [process for process in left if not _gone(process)]
        if left:
            time.sleep(0.02)
    return left


def _gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command_line(process: ProcessRecord, record: MeshRecord, folder: MeshFolder) -> list[str]:
    """How this process is started."""
    options = record.options
    command = [
        sys.executable,
        "-m",
        _MODULES[process.program],
        "--name",
        process.name,
        "--listen",
        process.address,
        "--log-level",
        options.log_level,
    ]
    if process.program == "tracestore":
        command += ["--query-listen", f"{process.host}:{process.peer_port}", "--database", str(folder.traces_path)]
        return [*command, "--forward", options.forward] if options.forward else command
    if options.forward:
        command += ["--otlp-endpoint", record.process("tracestore").address]
    else:
        # All write the trace store's file themselves: on one machine that is cheaper than sending.
        command += ["--trace-store", str(folder.traces_path)]
    if process.program == "apiserver":
        return [*command, "--etcd", ",".join(record.addresses("etcd"))]
    command += ["--apiserver", ",".join(record.addresses("apiserver"))]
    if process.program == "scheduler":
        if options.scheduler_config:
            command += ["--config", options.scheduler_config]
        return [
            *command,
            "--lease-duration-seconds",
            str(options.lease_duration_seconds),
            "--renew-deadline-seconds",
            str(options.renew_deadline_seconds),
            "--retry-period-seconds",
            str(options.retry_period_seconds),
        ]
    if options.fleet:
        command += ["--fleet", options.fleet]
    return [*command, "--seed", str(options.seed)]


def _environment() -> dict[str, str]:
    """The shell's, with one thread for NumPy's libraries: a process of ours never wants more."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _began(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log, each as a person reads it."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(readable(line) for line in text.splitlines()[-lines:]) or "(its log is empty)"


def readable(line: str) -> str:
    """One structlog JSON line as "time level event key=value"; anything else as it is."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict):
        return line
    # etcd's own words for the same three things.
    at = str(entry.pop("time", entry.pop("ts", "")))
    level = str(entry.pop("level", ""))
    event = str(entry.pop("event", entry.pop("msg", "")))
    exception = entry.pop("exception", "")
    pairs = " ".join(f"{key}={value}" for key, value in entry.items() if key not in ("process", "caller"))
    text = f"{at[11:23]} {level:7} {event} {pairs}".rstrip()
    return f"{text}\n{exception}" if exception else text
