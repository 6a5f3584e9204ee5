"""What the lab remembers of a mesh between two commands: one folder a mesh, one file in it that says what runs where.

    <home>/<mesh>/mesh.json       options, addresses and pids (written whole, then renamed into place)
    <home>/<mesh>/lock            held while a command starts or stops processes
    <home>/<mesh>/etcd/           etcd's data
    <home>/<mesh>/logs/<process>.jsonl
    <home>/<mesh>/traces.sqlite   the span store

`home` is $ORRERY_HOME, else the user's state folder. A pid counts only together with the time at which its process
began, so a pid that the kernel has given to somebody else is never taken for ours.
"""

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import platformdirs
import psutil

from services.lab.errors import LabError

MESH_DEFAULT = "default"
FORMAT = 1
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
# A process's start is told in clock ticks; two readings of the same one differ by less.
_SAME_START_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """What `orrery up` was asked for; kept, so that a second `up` starts the same mesh again.

    `fleet` is kubelet_sim's option: "dgx-h100=2,l40s-4=1". Election times are seconds.
    """

    apiservers: int = 2
    schedulers: int = 2
    fleet: str = ""
    seed: int = 1
    fsync: bool = True
    log_level: str = "info"
    lease_duration_seconds: float = 5.0
    renew_deadline_seconds: float = 3.5
    retry_period_seconds: float = 0.5
    # host:port of an OTLP collector, such as Jaeger, that the trace store passes everything on to.
    forward: str = ""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process. `port` is where it serves, 0 where it cannot be reached; `peer_port` is its second one (etcd's peers,
    the trace store's queries); `pid` 0: not started. One that Docker runs has its container's name, and Docker's words
    for its `state` and `health`.
    """

    name: str
    port: int
    pid: int = 0
    began: float = 0.0
    peer_port: int = 0
    host: str = "127.0.0.1"
    container: str = ""
    state: str = ""
    health: str = ""

    @property
    def program(self) -> str:
        """ "apiserver" for apiserver-0."""
        return self.name.rpartition("-")[0] if self.name[-1:].isdigit() else self.name

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def alive(self) -> bool:
        """Whether this very process still runs; a paused container does."""
        return self.state in ("running", "paused") if self.container else self.find() is not None

    def find(self) -> psutil.Process | None:
        """The process, None when it is gone (a zombie that nobody has reaped is gone)."""
        if not self.pid:
            return None
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.began) < _SAME_START_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


@dataclass(frozen=True, slots=True)
class MeshRecord:
    """A mesh as last written. `processes` in the order in which they start."""

    name: str
    options: MeshOptions
    processes: tuple[ProcessRecord, ...] = field(default_factory=tuple)

    def process(self, name: str) -> ProcessRecord:
        """Raises LabError, naming the processes that there are."""
        for process in self.processes:
            if process.name == name:
                return process
        known = ", ".join(process.name for process in self.processes)
        raise LabError(f"mesh {self.name!r} has no process {name!r}; it has {known}")

    def of(self, program: str) -> tuple[ProcessRecord, ...]:
        return tuple(process for process in self.processes if process.program == program)

    def addresses(self, program: str) -> list[str]:
        """Where those that can be reached serve."""
        return [process.address for process in self.of(program) if process.port]

    def with_process(self, changed: ProcessRecord) -> "MeshRecord":
        return replace(
            self,
            processes=tuple(changed if process.name == changed.name else process for process in self.processes),
        )

    @property
    def running(self) -> tuple[ProcessRecord, ...]:
        return tuple(process for process in self.processes if process.alive())


def home_folder(environ_home: str | None = None) -> Path:
    """Where all meshes live: `environ_home`, else $ORRERY_HOME, else the user's state folder."""
    named = environ_home or os.environ.get("ORRERY_HOME")
    return Path(named).expanduser() if named else Path(platformdirs.user_state_dir("orrery"))


class MeshFolder:
    """The folder of one mesh. Making this object touches nothing."""

    def __init__(self, home: Path, name: str = MESH_DEFAULT) -> None:
        """Raises LabError for a name that is no folder's."""
        if not _NAME.fullmatch(name):
            raise LabError(
                f"{name!r} cannot name a mesh: use lower-case letters, digits and hyphens, at most 40, such as team-a"
            )
        self.name = name
        self.path = home.absolute() / name

    @property
    def record_path(self) -> Path:
        return self.path / "mesh.json"

    @property
    def etcd_path(self) -> Path:
        return self.path / "etcd"

    @property
    def logs_path(self) -> Path:
        return self.path / "logs"

    @property
    def traces_path(self) -> Path:
        return self.path / "traces.sqlite"

    def log_path(self, process: str) -> Path:
        return self.logs_path / f"{process}.jsonl"

    def make(self) -> None:
        """Raises LabError when the folder cannot be made or written."""
        try:
            self.logs_path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise LabError(
                f"the state directory {self.path} is not writable ({error.strerror}); "
                "name one that is with ORRERY_HOME=/path/to/folder"
            ) from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by whoever starts or stops processes. Raises LabError when another command holds it."""
        self.make()
        with (self.path / "lock").open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LabError(
                    f"another orrery command is starting or stopping mesh {self.name!r}; wait for it, then try again"
                ) from error
            yield

    def read(self) -> MeshRecord | None:
        """The record, None where there is none. Raises LabError when the file is damaged."""
        try:
            text = self.record_path.read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LabError(f"{self.record_path} cannot be read: {error.strerror}") from error
        try:
            return _record(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            raise LabError(
                f"{self.record_path} is damaged ({error}); remove it, or everything with: orrery down --purge"
            ) from error

    def write(self, record: MeshRecord) -> None:
        """Replaces the record at once: a reader sees the old one or the new one."""
        aside = self.record_path.with_suffix(".tmp")
        aside.write_text(json.dumps({"format": FORMAT, **asdict(record)}, indent=2) + "\n")
        aside.replace(self.record_path)

    def purge(self) -> None:
        """Removes the folder and all that is in it. Raises LabError when it cannot."""
        try:
            shutil.rmtree(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise LabError(f"{self.path} cannot be removed: {error.strerror}") from error


def meshes(home: Path) -> list[str]:
    """Names of the meshes that have a record under `home`."""
    return sorted(path.parent.name for path in home.glob("*/mesh.json"))


def _record(data: Any) -> MeshRecord:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError("not a mesh record of this version")
    return MeshRecord(
        name=data["name"],
        options=MeshOptions(**data["options"]),
        processes=tuple(ProcessRecord(**process) for process in data["processes"]),
    )
