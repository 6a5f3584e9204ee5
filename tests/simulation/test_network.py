"""The simulated network, by itself: what a caller is told, and when."""

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from apiserver.server import DESCRIPTOR
from protos.orrery.v1.api_pb2 import GetRequest, Object, WatchRequest, WatchResponse
from services.model.errors import Conflict, OutcomeUnknown, Unavailable
from services.runtime.transport import CallContext, Service
from tests.simulation.loop import Owner, VirtualLoop
from tests.simulation.network import Network, NetworkFaults
from tests.simulation.streams import SILENCE_SECONDS_MAX
from tests.simulation.transport import SimulatedChannel, SimulatedTransport

MANY = 30
GET, WATCH = "/orrery.v1.Api/Get", "/orrery.v1.Api/Watch"


class Api:
    """Answers with the name of its server; counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gets = 0

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def refuse(_request: Any, _context: CallContext) -> Any:
            raise AssertionError(method)

        return refuse

    async def Get(self, request: GetRequest, _context: CallContext) -> Object:
        self.gets += 1
        if request.name == "conflict":
            raise Conflict("it moved", resource_version="7")
        if request.name == "bug":
            raise ZeroDivisionError("oops")
        return Object(value=self.name.encode())

    async def Watch(self, request: WatchRequest, _context: CallContext) -> AsyncIterator[WatchResponse]:
        """20 messages slowly, or MANY fast."""
        many = request.namespace == "many"
        for number in range(MANY if many else 20):
            response = WatchResponse()
            response.events.add(resource_version=str(number))
            yield response
            await asyncio.sleep(0.0137 if many else 0.5)


@dataclass
class Hosts:
    loop: VirtualLoop
    network: Network
    apis: dict[str, Api]
    owners: dict[str, Owner]
    channel: SimulatedChannel
    bugs: list[str] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)

    async def get(self, name: str = "") -> str:
        return (await self.channel.unary(GET, GetRequest(name=name), Object, timeout_seconds=3.0)).value.decode()

    def elapsed(self) -> float:
        return self.loop.time()


def run(test: Callable[[Hosts], Awaitable[None]], faults: NetworkFaults | None = None, seed: int = 1) -> Hosts:
    loop = VirtualLoop()

    async def main() -> Hosts:
        bugs: list[str] = []
        replies: list[str] = []
        network = Network(
            loop,
            random.Random(seed),
            lambda _actor, _text: None,
            lambda server, _method, _request, _response: replies.append(server),
            lambda server, method, error: bugs.append(f"{server} {method} {error!r}"),
        )
        network.faults = faults or NetworkFaults()
        owners = {name: Owner(loop, name, random.Random(name)) for name in ("a", "b", "client")}
        apis = {name: Api(name) for name in ("a", "b")}
        for name, api in apis.items():
            await SimulatedTransport(network, owners[name]).serve(name, [Service(DESCRIPTOR, api)])
        channel = SimulatedChannel(network, owners["client"], ["a", "b"], "client")
        hosts = Hosts(loop, network, apis, owners, channel, bugs, replies)
        await owners["client"].start(test(hosts))  # type: ignore[arg-type]
        return hosts

    try:
        return contextvars.Context().run(loop.run_until_complete, main())
    finally:
        loop.close()


def test_a_call_is_answered_and_its_answer_seen() -> None:
    async def test(hosts: Hosts) -> None:
        assert await hosts.get() == "a"

    assert run(test).replies == ["a"]


def test_a_refusal_keeps_its_class_and_details() -> None:
    async def test(hosts: Hosts) -> None:
        with pytest.raises(Conflict, match="it moved") as caught:
            await hosts.get("conflict")
        assert caught.value.resource_version == "7"

    run(test)


def test_a_handlers_own_fault_is_told() -> None:
    async def test(hosts: Hosts) -> None:
        with pytest.raises(Exception, match="failed"):
            await hosts.get("bug")

    assert run(test).bugs == [f"a {GET} ZeroDivisionError('oops')"]


def test_a_server_that_is_gone_is_passed_over() -> None:
    async def test(hosts: Hosts) -> None:
        hosts.owners["a"].kill()
        hosts.network.died(hosts.owners["a"])
        assert await hosts.get() == "b"

    run(test)


def test_without_any_server_a_call_certainly_did_not_happen() -> None:
    async def test(hosts: Hosts) -> None:
        for name in ("a", "b"):
            hosts.owners[name].kill()
            hosts.network.died(hosts.owners[name])
        with pytest.raises(Unavailable):
            await hosts.get()

    run(test)


def test_a_lost_request_and_a_lost_answer_look_the_same_to_the_caller() -> None:
    async def test(hosts: Hosts) -> None:
        with pytest.raises(OutcomeUnknown):
            await hosts.get()
        assert hosts.elapsed() == 3.0

    assert run(test, NetworkFaults(lost_request=1.0)).apis["a"].gets == 0
    assert run(test, NetworkFaults(lost_reply=1.0)).apis["a"].gets == 1


def test_a_doubled_request_runs_twice() -> None:
    async def test(hosts: Hosts) -> None:
        assert await hosts.get() == "a"
        await asyncio.sleep(10.0)

    assert run(test, NetworkFaults(doubled_request=1.0)).apis["a"].gets == 2


def test_a_cut_leads_to_the_other_server_after_one_unknown_outcome() -> None:
    async def test(hosts: Hosts) -> None:
        hosts.network.cut("client", "a")
        with pytest.raises(OutcomeUnknown):
            await hosts.get()
        assert await hosts.get() == "b"

    run(test)


def test_a_server_that_dies_during_a_call_leaves_the_outcome_unknown_at_once() -> None:
    async def test(hosts: Hosts) -> None:
        hosts.owners["a"].stop()
        call = asyncio.ensure_future(hosts.get())
        await asyncio.sleep(1.0)
        hosts.owners["a"].kill()
        hosts.network.died(hosts.owners["a"])
        with pytest.raises(OutcomeUnknown, match="connection lost"):
            await call
        assert hosts.elapsed() < 1.1

    run(test)


def test_a_stream_comes_in_order_whatever_the_delays() -> None:
    async def test(hosts: Hosts) -> None:
        seen = [
            response.events[0].resource_version
            async for response in hosts.channel.stream(WATCH, WatchRequest(), WatchResponse)
        ]
        assert seen == [str(number) for number in range(20)]

    run(test, NetworkFaults(slow=0.5, slow_seconds_max=3.0))


def test_messages_that_are_due_together_keep_their_order() -> None:
    """One slow message holds up a crowd behind it: all of them are due at its moment."""

    async def test(hosts: Hosts) -> None:
        stream = hosts.channel.stream(WATCH, WatchRequest(namespace="many"), WatchResponse)
        seen = [response.events[0].resource_version async for response in stream]
        assert seen == [str(number) for number in range(MANY)]

    for seed in range(200):
        run(test, NetworkFaults(slow=0.3, slow_seconds_max=0.5), seed)


def test_a_stream_behind_a_cut_is_given_up_when_it_has_been_silent_too_long() -> None:
    async def test(hosts: Hosts) -> None:
        seen = 0
        with pytest.raises(OutcomeUnknown):
            async for _ in hosts.channel.stream(WATCH, WatchRequest(), WatchResponse):
                seen += 1
                if seen == 2:
                    hosts.network.cut("a", "client")
        assert seen == 2
        assert hosts.elapsed() == pytest.approx(SILENCE_SECONDS_MAX, abs=1.0)

    run(test)


def test_a_short_cut_only_delays_a_stream() -> None:
    async def test(hosts: Hosts) -> None:
        seen = []
        async for response in hosts.channel.stream(WATCH, WatchRequest(), WatchResponse):
            seen.append(response.events[0].resource_version)
            if len(seen) == 2:
                hosts.network.cut("a", "client")
                hosts.network.after(2.0, hosts.network.heal)
        assert seen == [str(number) for number in range(20)]

    run(test)
