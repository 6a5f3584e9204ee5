"""Spans over OTLP: a real API server process exports to a collector of the test's own."""

import asyncio
import random
import sys

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import ApiClient
from services.lab.etcd import free_ports
from services.model.errors import ApiError
from services.runtime.grpc_transport import GrpcTransport
from tests.conftest import Etcd
from tests.direct import pod

TRACE_ID = "ab" * 16
TRACEPARENT = f"00-{TRACE_ID}-{'cd' * 8}-01"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps (service.name, span name, trace id) of what arrives."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, str]] = []
        self.arrived = asyncio.Event()

    async def Export(self, request: object, _context: object) -> object:
        assert isinstance(request, trace_service_pb2.ExportTraceServiceRequest)
        for resource in request.resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span.name, span.trace_id.hex()) for span in scope.spans]
        if any(name == "apiserver.create" for _, name, _ in self.spans):
            self.arrived.set()
        return trace_service_pb2.ExportTraceServiceResponse()


async def create_when_it_serves(address: str) -> Pod:
    channel = GrpcTransport(random.Random(0)).connect([address], caller="test")
    client = ApiClient(channel)
    try:
        while True:
            try:
                answer = await client.create("pods", pod("traced"), traceparent=TRACEPARENT)
                return Pod.FromString(answer.object.value)
            except ApiError:
                await asyncio.wait([asyncio.create_task(asyncio.to_thread(lambda: None))])
    finally:
        await channel.close()


async def test_spans_reach_a_collector_in_the_callers_trace(etcd: Etcd, etcd_store: object) -> None:
    collector = Collector()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    (api_port,) = free_ports(1)
    address = f"127.0.0.1:{api_port}"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "apiserver", "--name", "apiserver-otlp", "--listen", address),
        *("--etcd", etcd.endpoint, "--otlp-endpoint", f"127.0.0.1:{port}"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(40):
            made = await create_when_it_serves(address)
            await collector.arrived.wait()
    finally:
        process.terminate()
        assert await process.wait() == 0
        await server.stop(0)
    assert made.metadata.annotations["orrery.dev/traceparent"].startswith(f"00-{TRACE_ID}-")
    mine = {(service, name) for service, name, trace_id in collector.spans if trace_id == TRACE_ID}
    assert {("orrery-apiserver", "orrery.v1.Api/Create"), ("orrery-apiserver", "apiserver.create")} <= mine
