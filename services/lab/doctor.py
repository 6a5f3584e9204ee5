"""`orrery doctor`: is this machine fit for a mesh, and if not, what to do."""

import os
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.lab.errors import LabError
from services.lab.etcd import (
    UNSAFE_TO_KILL_FIRST,
    UNSAFE_TO_KILL_LAST,
    EtcdError,
    find_etcd,
    free_ports,
    port_is_taken,
    version_text,
)
from services.lab.state import MeshFolder

PYTHON_MIN = (3, 11)
FILES_MIN = 1_024
DISK_BYTES_MIN = 1 << 30
MEMORY_BYTES_MIN = 2 << 30
PORTS_WANTED = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """`ok` None: it works, and there is something to know."""

    subject: str
    ok: bool | None
    says: str
    advice: str = ""


def examine(folder: MeshFolder) -> list[Finding]:
    """Everything that is looked at, in a fixed order."""
    looks: tuple[Callable[[MeshFolder], Finding], ...] = (_python, _etcd, _ports, _files, _memory, _disk, _state, _mesh)
    return [look(folder) for look in looks]


def _python(_folder: MeshFolder) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_MIN:
        return Finding("Python", False, version, "install Python 3.11 or newer and make the virtual environment again")
    return Finding("Python", True, f"{version} at {sys.executable}")


def _etcd(_folder: MeshFolder) -> Finding:
    try:
        binary = find_etcd()
    except EtcdError as error:
        return Finding("etcd", False, "not found", str(error))
    says = f"{binary.version_text} from {binary.source} ({binary.path})"
    if UNSAFE_TO_KILL_FIRST <= binary.version <= UNSAFE_TO_KILL_LAST:
        first, last = version_text(UNSAFE_TO_KILL_FIRST), version_text(UNSAFE_TO_KILL_LAST)
        return Finding(
            "etcd",
            None,
            says,
            f"{first} to {last} can lose consistency when etcd itself is killed under load, so `orrery kill etcd` is "
            "refused; for that, put 3.4.23, or 3.5.3 or newer, on PATH (Debian, Ubuntu: apt-get install etcd-server)",
        )
    return Finding("etcd", True, says)


def _ports(_folder: MeshFolder) -> Finding:
    try:
        free_ports(PORTS_WANTED)
    except OSError as error:
        return Finding(
            "ports", False, f"none can be bound on 127.0.0.1 ({error.strerror})", "bring up the loopback interface"
        )
    return Finding("ports", True, f"{PORTS_WANTED} free ones found on 127.0.0.1")


def _files(_folder: MeshFolder) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_MIN:
        return Finding(
            "file limit", False, f"{soft} open files (at most {hard})", f"run: ulimit -n {max(FILES_MIN, 4096)}"
        )
    return Finding("file limit", True, f"{soft} open files")


def _memory(_folder: MeshFolder) -> Finding:
    import psutil

    available = psutil.virtual_memory().available
    says = f"{available / 2**30:.1f} GiB available, {os.cpu_count()} CPUs"
    if available < MEMORY_BYTES_MIN:
        return Finding("memory", None, says, "a large mesh wants 2 GiB; keep to few nodes, or close something")
    return Finding("memory", True, says)


def _disk(folder: MeshFolder) -> Finding:
    path = _nearest(folder.path)
    free = shutil.disk_usage(path).free
    if free < DISK_BYTES_MIN:
        return Finding(
            "disk", False, f"{free / 2**30:.1f} GiB free at {path}", "make room, or name another place with ORRERY_HOME"
        )
    return Finding("disk", True, f"{free / 2**30:.1f} GiB free")


def _nearest(path: Path) -> Path:
    """The folder itself or the nearest one above it that exists."""
    while not path.exists():
        path = path.parent
    return path


def _state(folder: MeshFolder) -> Finding:
    existed = folder.path.exists()
    try:
        folder.make()
    except LabError as error:
        return Finding("state directory", False, str(folder.path), str(error))
    finally:
        if not existed and folder.path.exists():
            shutil.rmtree(folder.path, ignore_errors=True)
    return Finding("state directory", True, f"{folder.path} is writable")


def _mesh(folder: MeshFolder) -> Finding:
    subject = f"mesh {folder.name}"
    try:
        record = folder.read()
    except LabError as error:
        return Finding(subject, False, "its record is damaged", str(error))
    if record is None:
        return Finding(subject, True, "never started; start it with: orrery up")
    gone = [process.name for process in record.processes if not process.alive()]
    if len(gone) == len(record.processes):
        taken = [process for process in record.processes if port_is_taken(process.port)]
        advice = f"port {taken[0].port} is taken by another program; `orrery up` chooses another" if taken else ""
        return Finding(subject, True if not taken else None, "down", advice)
    if gone:
        return Finding(subject, False, f"not running: {', '.join(gone)}", "start what is missing with: orrery up")
    return Finding(subject, True, f"{len(record.processes)} processes run")
