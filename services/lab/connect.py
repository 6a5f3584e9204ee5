"""The lab's way into a running mesh: channels to its processes, health, and the client's own spans.

A command is a client like any other: its name goes with each call, its root span begins the trace, and what it records
lies in the same span store as what the servers do.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from opentelemetry.trace import SpanKind

from protos.orrery.v1 import scheduler_pb2
from services.client.api import ApiClient
from services.client.backoff import Backoff
from services.client.readiness import why_not_serving
from services.lab.compose import ComposeFolder
from services.lab.errors import LabError, MeshDown
from services.lab.state import MeshFolder, MeshRecord, ProcessRecord
from services.lab.supervisor import Supervisor
from services.model.clock import Clock
from services.model.errors import ApiError, OutcomeUnknown, TooManyRequests, Unavailable
from services.runtime.clock import RealClock
from services.runtime.grpc_transport import GrpcTransport
from services.runtime.settings import CommonSettings
from services.runtime.telemetry import configure, tracer

CALLER = "orrery"
HEALTH_TIMEOUT_SECONDS = 1.0
HEALTH_POLL_SECONDS = 0.1
START_SECONDS_MAX = 60.0
RETRY_SECONDS_MAX = 15.0
_INSPECTION = "/" + scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerInspection"].full_name + "/"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """One command's connection to a mesh."""

    folder: MeshFolder
    record: MeshRecord
    api: ApiClient
    transport: GrpcTransport
    clock: Clock
    rng: random.Random


@asynccontextmanager
async def session(
    folder: MeshFolder,
    *,
    traced: bool = False,
    trace_ratio: float = 1.0,
    timeout_seconds: float = 10.0,
    degraded: bool = False,
) -> AsyncIterator[Session]:
    """Connects to the mesh of `folder`. `traced`: this command's own spans are kept. `degraded`: any process of it will do.

    Raises:
        MeshDown: no API server of it runs.
    """
    record = require_up(folder, degraded=degraded)
    rng = random.Random()  # noqa: S311 - spreading over servers, not secrets
    transport = GrpcTransport(rng)
    telemetry = None
    if traced:
        telemetry = configure(CALLER, _telemetry_settings(folder, record, trace_ratio))
    channel = transport.connect(record.addresses("apiserver"), caller=CALLER)
    try:
        yield Session(folder, record, ApiClient(channel, timeout_seconds=timeout_seconds), transport, RealClock(), rng)
    finally:
        await channel.close()
        if telemetry is not None:
            telemetry.shutdown()


def _telemetry_settings(folder: MeshFolder, record: MeshRecord, trace_ratio: float) -> CommonSettings:
    """The command's own spans go where those of the mesh's processes do."""
    if isinstance(folder, ComposeFolder):
        return CommonSettings(name=CALLER, otlp_endpoint=folder.otlp_endpoint(), trace_ratio=trace_ratio)
    if record.options.forward:
        store = record.process("tracestore").address
        return CommonSettings(name=CALLER, otlp_endpoint=store, trace_ratio=trace_ratio)
    return CommonSettings(name=CALLER, trace_store=str(folder.traces_path), trace_ratio=trace_ratio)


def require_up(folder: MeshFolder, *, degraded: bool = False) -> MeshRecord:
    """The record of a mesh of which an API server runs (`degraded`: any process). Raises MeshDown."""
    record = folder.read()
    if record is None or not any(process.program == "apiserver" or degraded for process in record.running):
        raise MeshDown(folder.name)
    return record


async def patiently(call: Callable[[], Awaitable[T]], clock: Clock, rng: random.Random) -> T:
    """Repeats a call that is safe to repeat while no server answers, for at most RETRY_SECONDS_MAX.

    Raises:
        ApiError: the server's refusal, or the last failure when the time is over.
    """
    backoff = Backoff(rng)
    deadline = clock.monotonic() + RETRY_SECONDS_MAX
    while True:
        try:
            return await call()
        except (Unavailable, OutcomeUnknown, TooManyRequests):
            if clock.monotonic() > deadline:
                raise
        await clock.sleep(backoff.next_seconds())


@asynccontextmanager
async def span(name: str, **attributes: str) -> AsyncIterator[None]:
    """The client's own span around a call: the root of the trace that the call begins."""
    with tracer().start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes):
        yield


async def healthy(transport: GrpcTransport, process: ProcessRecord) -> bool:
    """What grpc.health.v1 of `process` says; False when it does not answer."""
    channel = transport.connect([process.address], caller=CALLER)
    try:
        return not await why_not_serving(channel, HEALTH_TIMEOUT_SECONDS)
    finally:
        await channel.close()


async def wait_healthy(
    supervisor: Supervisor,
    record: MeshRecord,
    on_healthy: Callable[[str], None],
    seconds_max: float = START_SECONDS_MAX,
) -> None:
    """Returns once every process but etcd (whose start waits by itself) says that it serves.

    Raises:
        ProcessDied: one ended meanwhile.
        LabError: one did not get there in time.
    """
    transport = GrpcTransport(random.Random(0))  # noqa: S311 - one target each, nothing to spread
    clock = RealClock()
    deadline = clock.monotonic() + seconds_max
    waiting = {process.name: process for process in record.processes if process.program != "etcd"}
    while waiting:
        supervisor.check_alive(record)
        processes = list(waiting.values())
        answers = await asyncio.gather(*(healthy(transport, process) for process in processes))
        for process, is_healthy in zip(processes, answers, strict=True):
            if is_healthy:
                del waiting[process.name]
                on_healthy(process.name)
        if waiting and clock.monotonic() > deadline:
            name = next(iter(waiting))
            raise LabError(
                f"{', '.join(waiting)} did not become healthy within {seconds_max:.0f} s; "
                f"the log of {name} is {supervisor.folder.log_path(name)}"
            )
        if waiting:
            await clock.sleep(HEALTH_POLL_SECONDS)


async def scheduler_status(transport: GrpcTransport, process: ProcessRecord) -> scheduler_pb2.SchedulerStatus | None:
    """What this scheduler says of itself, None when it does not answer."""
    return await _inspect(
        transport, process, "Status", scheduler_pb2.SchedulerStatusRequest(), scheduler_pb2.SchedulerStatus
    )


async def leader(transport: GrpcTransport, schedulers: Iterable[ProcessRecord]) -> ProcessRecord | None:
    """The scheduler that says it leads, None while there is none."""
    for process in schedulers:
        status = await scheduler_status(transport, process)
        if status is not None and status.leader:
            return process
    return None


async def explanations(
    transport: GrpcTransport, schedulers: Iterable[ProcessRecord], request: scheduler_pb2.ExplainRequest
) -> list[scheduler_pb2.SchedulingAttempt]:
    """The attempts that any of the schedulers remembers, oldest first."""
    attempts: list[scheduler_pb2.SchedulingAttempt] = []
    for process in schedulers:
        answer = await _inspect(transport, process, "Explain", request, scheduler_pb2.ExplainResponse)
        if answer is not None:
            attempts.extend(answer.attempts)
    return sorted(attempts, key=lambda attempt: (attempt.at.seconds, attempt.at.nanos))


async def configuration_of(
    transport: GrpcTransport, process: ProcessRecord, method: str
) -> scheduler_pb2.SchedulerConfigurationStatus | None:
    """What `GetConfiguration` or `ReloadConfiguration` of this scheduler answers, None when it does not."""
    request = scheduler_pb2.GetConfigurationRequest()
    return await _inspect(transport, process, method, request, scheduler_pb2.SchedulerConfigurationStatus)


Answer = TypeVar(
    "Answer",
    scheduler_pb2.SchedulerStatus,
    scheduler_pb2.ExplainResponse,
    scheduler_pb2.SchedulerConfigurationStatus,
)


async def _inspect(
    transport: GrpcTransport,
    process: ProcessRecord,
    method: str,
    request: scheduler_pb2.SchedulerStatusRequest
    | scheduler_pb2.ExplainRequest
    | scheduler_pb2.GetConfigurationRequest,
    response_type: type[Answer],
) -> Answer | None:
    # Asked, not looked up by pid: the caller's record may be older than a restart, and the address outlives it.
    channel = transport.connect([process.address], caller=CALLER)
    try:
        return await channel.unary(
            _INSPECTION + method, request, response_type, timeout_seconds=HEALTH_TIMEOUT_SECONDS * 2
        )
    except ApiError:
        return None
    finally:
        await channel.close()
