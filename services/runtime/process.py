"""The life of a process: event loop, logging, telemetry, signals, exit code.

`run_process` owns everything that a `__main__` would otherwise repeat. SIGTERM and SIGINT cancel the process's main
task; what it owns must unwind within STOP_SECONDS_MAX, after which the process leaves by force. A fault of the world
(`OSError`, `ApiError`) ends it with one sentence and code 1; a bug ends it with its traceback.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import uvloop

from services.model.clock import Clock
from services.model.errors import ApiError
from services.runtime import logging, telemetry
from services.runtime.clock import RealClock
from services.runtime.grpc_transport import GrpcTransport
from services.runtime.settings import CommonSettings
from services.runtime.transport import Transport

# With the spans' last second, three in all.
STOP_SECONDS_MAX = 2.0
S = TypeVar("S", bound=CommonSettings)


@dataclass(frozen=True, slots=True)
class Process(Generic[S]):
    """What a `__main__` hands to its shell: the real fillings of the seams."""

    settings: S
    clock: Clock
    transport: Transport
    rng: random.Random
    log: logging.Logger


def run_process(service_name: str, settings: S, main: Callable[[Process[S]], Awaitable[None]]) -> int:
    """Runs `main` until it returns or a signal stops it; returns the exit code."""
    log = logging.configure(settings.name, settings.log_level)
    traces = telemetry.configure(service_name, settings)
    rng = random.Random()  # noqa: S311 - jitter and spreading, not secrets
    process = Process(settings, RealClock(), GrpcTransport(rng), rng, log)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_until_stopped(process, main))
    finally:
        traces.shutdown()


async def _until_stopped(process: Process[S], main: Callable[[Process[S]], Awaitable[None]]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main(process))
    stopping = False

    def stop(name: str) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            process.log.info("stopping", signal=name)
            task.cancel()
            loop.call_later(STOP_SECONDS_MAX, _leave_by_force)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    try:
        await task
    except asyncio.CancelledError:
        if not stopping:
            raise
    except (OSError, ApiError) as fault:
        return _fault(process.log, fault)
    except BaseExceptionGroup as group:
        faults, rest = group.split((OSError, ApiError))
        if rest is not None or faults is None:
            process.log.exception("process_failed")
            raise
        return _fault(process.log, _first(faults))
    return 0


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _fault(log: logging.Logger, fault: BaseException) -> int:
    log.error("process_ended", reason=str(fault))
    return 1


def _leave_by_force() -> None:
    sys.stderr.flush()
    os._exit(1)
