"""The network seam over real sockets: errors keep their class, what certainly did not happen is told from the unknown."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.orrery.v1 import api_pb2
from protos.orrery.v1.api_pb2 import GetRequest, Object, WatchRequest, WatchResponse
from services.lab.etcd import free_ports
from services.model.errors import ERROR_BY_REASON, ApiError, Cause, Expired, Internal, OutcomeUnknown, Unavailable
from services.runtime.grpc_transport import GrpcTransport
from services.runtime.transport import CallContext, Server, Service

API = api_pb2.DESCRIPTOR.services_by_name["Api"]
GET = f"/{API.full_name}/Get"
WATCH = f"/{API.full_name}/Watch"


class Answers:
    """Serves Get and Watch as told; every other RPC of the service is not asked here."""

    def __init__(self, get: Callable[[GetRequest, CallContext], Object]) -> None:
        self._get = get
        self.waiting = asyncio.Event()
        self.calls = 0

    def __getattr__(self, name: str) -> object:
        return self.Get

    async def Get(self, request: GetRequest, context: CallContext) -> Object:
        self.calls += 1
        if request.name == "wait":
            self.waiting.set()
            await asyncio.Event().wait()
        return self._get(request, context)

    async def Watch(self, request: WatchRequest, _context: CallContext) -> AsyncIterator[WatchResponse]:
        for number in range(3):
            response = WatchResponse()
            response.events.add(resource_version=str(number))
            yield response
        if request.resource == "expired":
            raise Expired("too old")


@asynccontextmanager
async def serving(answers: Answers, address: str = "127.0.0.1:0") -> AsyncIterator[Server]:
    server = await GrpcTransport(random.Random(0)).serve(address, [Service(API, answers)])
    try:
        yield server
    finally:
        await server.stop(0)


async def get(targets: list[str], name: str = "x", timeout: float = 5.0) -> Object:
    channel = GrpcTransport(random.Random(0)).connect(targets, caller="test")
    try:
        return await channel.unary(GET, GetRequest(name=name), Object, timeout_seconds=timeout)
    finally:
        await channel.close()


def echo(request: GetRequest, context: CallContext) -> Object:
    return Object(value=f"{request.name} for {context.caller}".encode())


async def test_a_call_carries_the_callers_name() -> None:
    async with serving(Answers(echo)) as server:
        assert (await get([server.address])).value == b"x for test"


@pytest.mark.parametrize("reason", sorted(ERROR_BY_REASON))
async def test_a_refusal_keeps_its_class_and_its_fields(reason: str) -> None:
    def refuse(_request: GetRequest, _context: CallContext) -> Object:
        raise ERROR_BY_REASON[reason](
            "because",
            causes=(Cause("spec.x", "FieldValueInvalid", "wrong"),),
            retry_after_seconds=3,
            resource_version="7",
        )

    async with serving(Answers(refuse)) as server:
        with pytest.raises(ApiError) as caught:
            await get([server.address])
    error = caught.value
    assert type(error) is ERROR_BY_REASON[reason]
    assert (error.message, error.retry_after_seconds, error.resource_version) == ("because", 3, "7")
    assert error.causes == (Cause("spec.x", "FieldValueInvalid", "wrong"),)


async def test_a_bug_is_answered_without_its_details() -> None:
    def fail(_request: GetRequest, _context: CallContext) -> Object:
        raise ZeroDivisionError("the secret")

    async with serving(Answers(fail)) as server:
        with pytest.raises(Internal) as caught:
            await get([server.address])
    assert "secret" not in caught.value.message


async def test_a_deadline_leaves_the_outcome_unknown() -> None:
    async with serving(Answers(echo)) as server:
        with pytest.raises(OutcomeUnknown):
            await get([server.address], "wait", timeout=0.3)


async def test_a_server_that_dies_in_the_call_leaves_the_outcome_unknown() -> None:
    answers = Answers(echo)
    server = await GrpcTransport(random.Random(0)).serve("127.0.0.1:0", [Service(API, answers)])
    call = asyncio.create_task(get([server.address], "wait", timeout=20.0))
    await answers.waiting.wait()
    await server.stop(0)
    with pytest.raises(OutcomeUnknown):
        await call


async def test_nobody_there_is_unavailable() -> None:
    (port,) = free_ports(1)
    with pytest.raises(Unavailable, match="no server answers"):
        await get([f"127.0.0.1:{port}"])


async def test_a_call_that_was_not_sent_goes_to_the_next_server() -> None:
    (port,) = free_ports(1)
    answers = Answers(echo)
    async with serving(answers) as server:
        for _ in range(4):
            assert (await get([f"127.0.0.1:{port}", server.address])).value == b"x for test"
    assert answers.calls == 4


async def test_a_taken_port_is_said_so_also_when_it_is_our_own_server_that_took_it() -> None:
    """gRPC would share the port in silence (SO_REUSEPORT) unless it is told not to."""
    async with serving(Answers(echo)) as server:
        with pytest.raises(OSError, match="the port is taken"):
            async with serving(Answers(echo), server.address):
                raise AssertionError("two servers on one port")


async def test_a_stream_ends_with_its_error() -> None:
    async with serving(Answers(echo)) as server:
        channel = GrpcTransport(random.Random(0)).connect([server.address], caller="test")
        seen = []
        with pytest.raises(Expired, match="too old"):
            async for response in channel.stream(WATCH, WatchRequest(resource="expired"), WatchResponse):
                seen.append(response.events[0].resource_version)
        await channel.close()
    assert seen == ["0", "1", "2"]


async def test_health_says_what_the_shell_said() -> None:
    async with serving(Answers(echo)) as server, grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        states = []
        for serving_now in (None, True, False):
            if serving_now is not None:
                server.set_serving(serving_now)
            answer = await health.Check(health_pb2.HealthCheckRequest(service=API.full_name))
            states.append(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    assert states == ["NOT_SERVING", "SERVING", "NOT_SERVING"]


async def test_reflection_lists_the_services() -> None:
    async with serving(Answers(echo)) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]))
        answer = await call.read()
        call.cancel()
    listed = {service.name for service in answer.list_services_response.service}
    assert {API.full_name, "grpc.health.v1.Health"} <= listed
