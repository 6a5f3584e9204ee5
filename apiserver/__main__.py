"""`python -m apiserver`: the API server over gRPC and etcd."""

import asyncio
import os
import sys

from apiserver.server import DESCRIPTOR, ApiService
from apiserver.settings import ApiServerSettings
from apiserver.storage_format import check_format
from apiserver.store.etcd import EtcdStore
from apiserver.store.protocol import StoreError
from services.runtime.process import Process, run_process
from services.runtime.settings import load_settings
from services.runtime.transport import Server, Service

HEALTH_SECONDS = 1.0
STOP_GRACE_SECONDS = 1.0


async def serve(process: Process[ApiServerSettings]) -> None:
    """Serves until it is cancelled. Healthy: the caches are filled and etcd answers."""
    settings = process.settings
    store = EtcdStore(settings.etcd)
    try:
        await check_format(store, process.clock, process.log)
    except BaseException:
        await store.close()
        raise
    service = ApiService(store, process.clock, settings, process.rng, process.log)
    server = await process.transport.serve(settings.listen, [Service(DESCRIPTOR, service)])
    process.log.info("listening", address=server.address, etcd=",".join(settings.etcd))
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.run())
            tasks.create_task(_watch_health(process, service, server, store))
    finally:
        server.set_serving(False)
        await server.stop(STOP_GRACE_SECONDS)
        await store.close()


async def _watch_health(
    process: Process[ApiServerSettings], service: ApiService, server: Server, store: EtcdStore
) -> None:
    await service.ready.wait()
    while True:
        try:
            await store.revision()
            server.set_serving(True)
        except StoreError as error:
            server.set_serving(False)
            process.log.warning("unhealthy", reason=str(error))
        await process.clock.sleep(HEALTH_SECONDS)


def main() -> int:
    settings = load_settings(
        ApiServerSettings, sys.argv[1:], os.environ, prog="apiserver", description="The API server of an Orrery mesh."
    )
    return run_process("orrery-apiserver", settings, serve)


if __name__ == "__main__":
    sys.exit(main())
