"""`python -m scheduler`: the scheduler over gRPC."""

import asyncio
import os
import sys
import uuid

from scheduler.inspection import DESCRIPTOR, InspectionService
from scheduler.settings import SchedulerSettings
from scheduler.shell import SchedulerShell
from scheduler.watchdog import PluginWatchdog
from services.client.api import ApiClient
from services.client.readiness import watch_readiness
from services.runtime.process import Process, run_process
from services.runtime.settings import load_settings
from services.runtime.transport import Service

STOP_GRACE_SECONDS = 0.5


async def serve(process: Process[SchedulerSettings]) -> None:
    """Schedules until it is cancelled. Healthy: all informers have listed, and an API server serves."""
    # Around all of it: plugins are made before anything is served.
    with PluginWatchdog(process.settings.plugin_seconds_max, process.log):
        await _serve(process)


async def _serve(process: Process[SchedulerSettings]) -> None:
    settings = process.settings
    identity = f"{settings.name}_{uuid.uuid4()}"
    channel = process.transport.connect(settings.apiserver, caller=settings.name)
    shell = SchedulerShell(ApiClient(channel), process.clock, settings, process.rng, identity, process.log)
    inspection = InspectionService(shell.status, shell.attempts, shell.configuration)
    server = await process.transport.serve(settings.listen, [Service(DESCRIPTOR, inspection)])
    process.log.info("listening", address=server.address, identity=identity)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(shell.run())
            tasks.create_task(watch_readiness(channel, process.clock, server, lambda: shell.synced, process.log))
    finally:
        server.set_serving(False)
        await server.stop(STOP_GRACE_SECONDS)
        await channel.close()


def main() -> int:
    settings = load_settings(
        SchedulerSettings, sys.argv[1:], os.environ, prog="scheduler", description="The scheduler of an Orrery mesh."
    )
    return run_process("orrery-scheduler", settings, serve)


if __name__ == "__main__":
    sys.exit(main())
