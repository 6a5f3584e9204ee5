"""`python -m services.tracestore`: OTLP in, Jaeger's query API out."""

import asyncio
import os
import sqlite3
import sys

from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from services.runtime.process import Process, run_process
from services.runtime.settings import load_settings
from services.runtime.transport import Service
from services.spans.schema import SpanStoreError
from services.spans.store import SpanStore
from services.tracestore.http import QueryApi
from services.tracestore.ingest import Counters, Forwarder, Ingest
from services.tracestore.settings import TraceStoreSettings

DESCRIPTOR = trace_service_pb2.DESCRIPTOR.services_by_name["TraceService"]
HEALTH_SECONDS = 1.0
STOP_GRACE_SECONDS = 0.5
# A request line with hundreds of trace ids.
LINE_BYTES_MAX = 64 << 10


async def serve(process: Process[TraceStoreSettings]) -> None:
    """Serves until it is cancelled. Healthy: the file takes what comes."""
    settings = process.settings
    counters = Counters()
    stores = [_open(settings), _open(settings)]
    forwarder = None
    if settings.forward:
        channel = process.transport.connect([settings.forward], caller=settings.name)
        forwarder = Forwarder(channel, settings.forward, counters, process.log)
    ingest = Ingest(stores[0], counters, process.log, forwarder)
    api = QueryApi(stores[1], ingest)
    server = await process.transport.serve(settings.listen, [Service(DESCRIPTOR, ingest)])
    runner = web.AppRunner(
        api.application(), access_log=None, shutdown_timeout=STOP_GRACE_SECONDS, max_line_size=LINE_BYTES_MAX
    )
    await runner.setup()
    host, _, port = settings.query_listen.rpartition(":")
    try:
        await web.TCPSite(runner, host.strip("[]"), int(port), reuse_address=True).start()
        query = f"{host}:{runner.addresses[0][1]}"
        process.log.info("listening", address=server.address, query=query, forward=settings.forward)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ingest.run())
            if forwarder is not None:
                tasks.create_task(forwarder.run())
            while True:
                if not ingest.healthy:
                    await ingest.probe()
                server.set_serving(ingest.healthy)
                await process.clock.sleep(HEALTH_SECONDS)
    finally:
        server.set_serving(False)
        await server.stop(STOP_GRACE_SECONDS)
        # First, so that whoever waits for a search is told before the server goes.
        await api.close()
        await runner.cleanup()
        await ingest.close()
        for store in stores:
            store.close()


def _open(settings: TraceStoreSettings) -> SpanStore:
    """Raises OSError, which ends the process with one sentence."""
    try:
        return SpanStore(settings.database, spans_max=settings.spans_max, bytes_max=settings.megabytes_max << 20)
    except (sqlite3.Error, SpanStoreError) as error:
        raise OSError(f"the span file {settings.database} cannot be used: {error}") from error


def main() -> int:
    settings = load_settings(
        TraceStoreSettings,
        sys.argv[1:],
        os.environ,
        prog="services.tracestore",
        description="The trace store of an Orrery mesh: OTLP/gRPC in, Jaeger's query API out.",
    )
    return run_process("orrery-tracestore", settings, serve)


if __name__ == "__main__":
    sys.exit(main())
