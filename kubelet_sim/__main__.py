"""`python -m kubelet_sim`: the machines of a mesh."""

import asyncio
import os
import sys

from kubelet_sim.core.shapes import Machine
from kubelet_sim.fleet import fleet_machines, load_catalogue
from kubelet_sim.settings import KubeletSettings
from kubelet_sim.shell import KubeletShell
from services.client.api import ApiClient
from services.client.readiness import watch_readiness
from services.runtime.process import Process, run_process
from services.runtime.settings import load_settings

STOP_GRACE_SECONDS = 1.0


async def play(process: Process[KubeletSettings], machines: list[Machine]) -> None:
    """Plays until it is cancelled. Healthy: the fleet is registered, all nodes and pods are known, and an API server
    serves.
    """
    settings = process.settings
    server = await process.transport.serve(settings.listen, [])
    process.log.info("listening", address=server.address, fleet=",".join(settings.fleet), seed=settings.seed)
    channel = process.transport.connect(settings.apiserver, caller=settings.name)
    shell = KubeletShell(ApiClient(channel), process.clock, settings, process.rng, machines=machines, log=process.log)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(shell.run())
            tasks.create_task(
                watch_readiness(channel, process.clock, server, shell.ready.is_set, process.log),
            )
    finally:
        server.set_serving(False)
        await server.stop(STOP_GRACE_SECONDS)
        await channel.close()


def main() -> int:
    settings = load_settings(
        KubeletSettings, sys.argv[1:], os.environ, prog="kubelet_sim", description="The machines of an Orrery mesh."
    )
    try:
        machines = fleet_machines(load_catalogue(), settings.fleet)
    except ValueError as error:
        sys.stderr.write(f"python -m kubelet_sim: error: --fleet: {error}\n")
        return 2
    return run_process("orrery-kubelet-sim", settings, lambda process: play(process, machines))


if __name__ == "__main__":
    sys.exit(main())
