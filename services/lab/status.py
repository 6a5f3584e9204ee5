"""What `orrery status` shows: who leads under which epoch, queue lengths, pods by phase, nodes, and the processes."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psutil

from protos.orrery.v1 import node_pb2
from protos.orrery.v1.pod_pb2 import PodStatus
from protos.orrery.v1.scheduler_pb2 import SchedulerStatus
from services.client.informer import Informer
from services.lab import etcd
from services.lab.connect import Session, healthy, scheduler_status, session
from services.lab.errors import MeshDown
from services.lab.state import MeshFolder, ProcessRecord
from services.model.errors import ApiError
from services.wire.metadata import read_envelope

if TYPE_CHECKING:
    from rich.console import Group

REFRESH_SECONDS = 1.0
HEALTHY, STARTING, GONE, PAUSED = "healthy", "not serving", "not running", "paused"
_STYLE = {HEALTHY: "green", STARTING: "yellow", GONE: "red", PAUSED: "yellow"}


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    process: ProcessRecord
    health: str
    memory_bytes: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class MeshStatus:
    """`phases` and `nodes` are None when no API server answers; `waiting` counts Pending pods without a node."""

    name: str
    processes: tuple[ProcessStatus, ...]
    schedulers: Mapping[str, SchedulerStatus]
    phases: Mapping[str, int] | None
    nodes: tuple[int, int] | None

    @property
    def healthy(self) -> bool:
        return all(process.health == HEALTHY for process in self.processes)


async def take(folder: MeshFolder) -> MeshStatus:
    """One look at the mesh. Raises MeshDown when nothing of it runs."""
    record = folder.read()
    if record is None or not record.running:
        raise MeshDown(folder.name)
    async with session(folder, degraded=True, timeout_seconds=5.0) as client:
        return await look(client)


async def look(client: Session) -> MeshStatus:
    """One look over an open session."""
    try:
        pods, _ = await client.api.list("pods", resource_version="0")
        nodes, _ = await client.api.list("nodes", resource_version="0")
    except ApiError:
        return await _picture(client, None, None)
    return await _picture(client, [_phase(item.value, "") for item in pods], [_ready(item.value, "") for item in nodes])


async def _picture(client: Session, phases: Iterable[str] | None, ready: Collection[bool] | None) -> MeshStatus:
    """Processes and schedulers as they answer now, with pods and nodes as they were given."""
    processes = []
    schedulers: dict[str, SchedulerStatus] = {}
    for process in client.record.processes:
        processes.append(await _process_status(client, process))
        if process.program == "scheduler":
            told = await scheduler_status(client.transport, process)
            if told is not None:
                schedulers[process.name] = told
    return MeshStatus(
        client.folder.name,
        tuple(processes),
        schedulers,
        None if phases is None else Counter(phases),
        None if ready is None else (sum(ready), len(ready)),
    )


async def _process_status(client: Session, process: ProcessRecord) -> ProcessStatus:
    if process.container:
        return ProcessStatus(process, await _container_health(client, process), 0, 0.0)
    running = process.find()
    if running is None:
        return ProcessStatus(process, GONE, 0, 0.0)
    serving = await _serves(client, process)
    try:
        with running.oneshot():
            times = running.cpu_times()
            return ProcessStatus(
                process, HEALTHY if serving else STARTING, running.memory_info().rss, times.user + times.system
            )
    except psutil.Error:
        return ProcessStatus(process, GONE, 0, 0.0)


async def _container_health(client: Session, process: ProcessRecord) -> str:
    """What the process itself says where it can be reached, else what Docker says."""
    if process.state == "paused":
        return PAUSED
    if not process.alive():
        return GONE
    if process.port:
        return HEALTHY if await _serves(client, process) else STARTING
    return HEALTHY if process.health == "healthy" else STARTING


async def _serves(client: Session, process: ProcessRecord) -> bool:
    if process.program == "etcd":
        return etcd.answers(process.port, process.host)
    return await healthy(client.transport, process)


def _phase(value: bytes, _resource_version: str) -> str:
    envelope = read_envelope(value)
    phase = PodStatus.FromString(envelope.status).phase or "Pending"
    if phase == "Pending":
        return "Pending, has a node" if envelope.HasField("placed") else "Pending"
    return phase


def _ready(value: bytes, _resource_version: str) -> bool:
    node = node_pb2.Node.FromString(value)
    return any(item.type == "Ready" and item.status == "True" for item in node.status.conditions)


def render(status: MeshStatus) -> "Group":
    """The whole picture as something that rich prints."""
    from rich.console import Group
    from rich.text import Text

    leader = next((told for told in status.schedulers.values() if told.leader), None)
    lines = [Text.from_markup(f"mesh [bold]{status.name}[/]")]
    if leader is not None:
        lines.append(
            Text.from_markup(
                f"leader [bold]{leader.name}[/], epoch {leader.fencing_token}; queue: {leader.queue_active} active, "
                f"{leader.queue_backoff} in backoff, {leader.queue_unschedulable} unschedulable, "
                f"{leader.queue_gated} gated; {leader.assumed} binds in flight, {leader.bound} bound"
            )
        )
    else:
        lines.append(Text("no scheduler leads at this moment", style="yellow"))
    for name, told in status.schedulers.items():
        if told.configuration_error:
            lines.append(Text(f"{name} goes by an older configuration: {told.configuration_error}", style="red"))
        faults = ", ".join(f"{item.plugin} {item.count}" for item in told.plugin_faults)
        if faults:
            lines.append(Text(f"{name} saw faults of plugins: {faults}", style="yellow"))
    if status.nodes is not None:
        lines.append(Text(f"nodes: {status.nodes[0]} of {status.nodes[1]} ready"))
    if status.phases is None:
        lines.append(Text("no API server answers", style="red"))
    else:
        counts = ", ".join(f"{count} {phase}" for phase, count in sorted(status.phases.items()))
        lines.append(Text(f"pods: {counts or 'none'}"))
    return Group(*lines, Text(""), _process_table(status))


def _process_table(status: MeshStatus) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("PROCESS", "HEALTH", "PID", "ADDRESS", "MEMORY", "CPU", "ROLE"):
        table.add_column(column, justify="right" if column in ("PID", "MEMORY", "CPU") else "left")
    for item in status.processes:
        told = status.schedulers.get(item.process.name)
        role = "" if told is None else "leader" if told.leader else "standby"
        known = item.health != GONE and not item.process.container
        table.add_row(
            item.process.name,
            f"[{_STYLE[item.health]}]{item.health}[/]",
            str(item.process.pid) if known else "-",
            item.process.address if item.process.port else "inside only",
            f"{item.memory_bytes / 2**20:.0f} MiB" if known else "-",
            f"{item.cpu_seconds:.1f} s" if known else "-",
            role,
        )
    return table


async def watch_status(folder: MeshFolder, out: Any) -> None:
    """Shows the picture again and again until it is cancelled; pods and nodes are watched, not listed each time.

    Raises:
        MeshDown: nothing of the mesh runs.
    """
    from rich.live import Live

    with Live(render(await take(folder)), console=out, auto_refresh=False) as live:
        async with session(folder, degraded=True, timeout_seconds=5.0) as client:
            api, clock, rng = client.api, client.clock, client.rng
            pods: Informer[str] = Informer(api, clock, "pods", _phase, _ignore, rng=rng)
            nodes: Informer[bool] = Informer(api, clock, "nodes", _ready, _ignore, rng=rng)
            following = [asyncio.ensure_future(informer.run()) for informer in (pods, nodes)]
            try:
                while True:
                    await clock.sleep(REFRESH_SECONDS)
                    # A process that was started again has another pid.
                    client = replace(client, record=folder.read() or client.record)
                    phases = list(pods.cache.values()) if pods.synced else None
                    ready = list(nodes.cache.values()) if nodes.synced else None
                    live.update(render(await _picture(client, phases, ready)), refresh=True)
            finally:
                for task in following:
                    task.cancel()
                await asyncio.gather(*following, return_exceptions=True)


def _ignore(_key: str, _old: object, _new: object) -> None:
    """The caches are all that is wanted."""
