"""The mesh that Docker Compose runs, as a context of the `orrery` command: `orrery --context compose ...`.

From the host its processes are found by asking Docker for the containers of the project (COMPOSE_PROJECT_NAME, else
`orrery`): what runs, which ports of 127.0.0.1 lead to it, how healthy it is. Inside, in the service `lab`, there is no
Docker; there ORRERY_MESH names the processes and their addresses. Docker Compose starts, stops and keeps them; the lab
reads, loads, checks, and sends signals.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from services.lab.errors import LabError
from services.lab.state import MeshFolder, MeshOptions, MeshRecord, ProcessRecord

COMPOSE = "compose"
PROJECT_DEFAULT = "orrery"
QUERY_PORT = "16686/tcp"
REMOTE = "remote"
DOCKER_SECONDS_MAX = 30.0
# The port at which each program serves in its container, and the one of its second service.
_PORTS = {
    "etcd": "2379/tcp",
    "apiserver": "6443/tcp",
    "scheduler": "10259/tcp",
    "kubelet-sim": "10250/tcp",
    "tracestore": "4317/tcp",
}
_ORDER = list(_PORTS)


class DockerError(LabError):
    """Docker is absent, does not answer, or refused; the message says which, and what to do."""


class ComposeFolder(MeshFolder):
    """Stands where a mesh's folder does; there is no folder, Docker remembers."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(Path("/"), COMPOSE)
        environ = os.environ if environ is None else environ
        self.project = environ.get("COMPOSE_PROJECT_NAME") or PROJECT_DEFAULT
        self._mesh = environ.get("ORRERY_MESH", "")
        self._query = environ.get("ORRERY_TRACE_QUERY", "")

    def read(self) -> MeshRecord | None:
        """What runs now. Raises DockerError."""
        processes = remote_processes(self._mesh) if self._mesh else container_processes(self.project)
        if not processes:
            return None
        return MeshRecord(COMPOSE, MeshOptions(), tuple(sorted(processes, key=_place)))

    def otlp_endpoint(self) -> str:
        """Where this command's own spans go, empty when the trace store does not run."""
        store = self._store()
        return store.address if store is not None and store.port else ""

    def trace_query_url(self) -> str:
        """The query API. Raises LabError when nothing serves it."""
        if self._query:
            return self._query
        store = self._store()
        if store is None or not store.peer_port:
            raise LabError("the trace store does not run; start it with: docker compose up -d tracestore")
        return f"http://{store.host}:{store.peer_port}"

    def _store(self) -> ProcessRecord | None:
        record = self.read()
        return next(iter(record.of("tracestore")), None) if record is not None else None

    def make(self) -> None:
        raise LabError("Docker Compose runs this mesh; start it with: make lab, or: docker compose up -d --wait")

    def lock(self) -> NoReturn:
        raise LabError(
            "Docker Compose starts and stops this mesh: make lab, make lab-down, or docker compose up, stop and down"
        )


def _place(process: ProcessRecord) -> tuple[int, str]:
    return (_ORDER.index(process.program) if process.program in _ORDER else len(_ORDER), process.name)


def remote_processes(text: str) -> list[ProcessRecord]:
    """Those that ORRERY_MESH names, as name=host:port,... Raises LabError."""
    processes = []
    for item in text.split(","):
        name, equals, address = item.strip().partition("=")
        host, _, port = address.rpartition(":")
        if not (name and equals and host and port.isdigit()):
            raise LabError(f"ORRERY_MESH has {item!r}, which is not name=host:port")
        processes.append(ProcessRecord(name, int(port), host=host, container=REMOTE, state="running"))
    return processes


def container_processes(project: str) -> list[ProcessRecord]:
    """The containers of the project that are processes of a mesh. Raises DockerError."""
    label = f"label=com.docker.compose.project={project}"
    ids = docker("ps", "--all", "--quiet", "--filter", label).split()
    if not ids:
        return []
    processes = []
    for item in json.loads(docker("inspect", *ids)):
        process = container_process(item)
        if process is not None:
            processes.append(process)
    return processes


def container_process(item: Mapping[str, Any]) -> ProcessRecord | None:
    """What `docker inspect` says of one container; None for those that are no process of a mesh (the lab, Jaeger)."""
    labels = item["Config"]["Labels"]
    name = labels.get("com.docker.compose.service", "")
    plain = ProcessRecord(name, 0, container=item["Name"].removeprefix("/"))
    if plain.program not in _PORTS or labels.get("com.docker.compose.oneoff") == "True":
        return None
    ports = item["NetworkSettings"]["Ports"]
    state = item["State"]
    health = (state.get("Health") or {}).get("Status", "")
    return ProcessRecord(
        name,
        _host_port(ports, _PORTS[plain.program]),
        peer_port=_host_port(ports, QUERY_PORT),
        container=plain.container,
        state=state["Status"],
        health=health,
    )


def _host_port(ports: Mapping[str, Any], container_port: str) -> int:
    """The port of 127.0.0.1 that leads there, 0 when none does."""
    published = ports.get(container_port) or []
    return int(published[0]["HostPort"]) if published else 0


def docker(*arguments: str) -> str:
    """What the docker command prints. Raises DockerError."""
    program = shutil.which("docker")
    if program is None:
        raise DockerError("the context 'compose' needs Docker, and there is no docker command on PATH")
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, timeout=DOCKER_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        raise DockerError(f"Docker does not answer: docker {arguments[0]} took {DOCKER_SECONDS_MAX:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise DockerError(f"docker {arguments[0]}: {said[-1]}")
    return done.stdout
