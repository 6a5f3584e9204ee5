"""The network seam as a process sees it: `Transport`, `Channel` and `Server` on the simulated network.

A channel behaves as that of `services.runtime.grpc_transport`: it stays with the server that answered last, and moves on
when a call certainly did not reach it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import Message

from services.model.errors import ApiError, OutcomeUnknown, Unavailable
from services.runtime.transport import M, Service
from tests.simulation.loop import Owner
from tests.simulation.network import Listener, Network, NeverReached

CONNECT_SECONDS_MAX = 0.5


class SimulatedChannel:
    """`services.runtime.transport.Channel` of one process."""

    def __init__(self, network: Network, owner: Owner, targets: Sequence[str], caller: str) -> None:
        self._network = network
        self._owner = owner
        self._targets = list(targets)
        self._caller = caller
        self._current = 0
        self._broken: dict[str, None] = {}

    async def unary(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        timeout_seconds: float,
        metadata: Mapping[str, str] | None = None,
    ) -> M:
        """See `services.runtime.transport.Channel.unary`."""
        error: ApiError | None = None
        for _ in self._targets:
            answer = await self._call(method, request.SerializeToString(), timeout_seconds, dict(metadata or {}))
            if isinstance(answer, bytes):
                return response_type.FromString(answer)
            error = answer
            if not isinstance(answer, NeverReached):
                break
        assert error is not None
        raise Unavailable(error.message) if isinstance(error, NeverReached) else error

    async def _call(
        self, method: str, request: bytes, timeout_seconds: float, metadata: dict[str, str]
    ) -> bytes | ApiError:
        self._owner.require_alive()
        address = self._targets[self._current]
        if address in self._broken and not await self._reconnect(address):
            return NeverReached(f"{address}: failed to connect")
        loop = self._owner.loop
        deadline = loop.time() + timeout_seconds
        call = self._network.call(self._owner, self._caller, address, method, request, deadline, metadata)
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await call.answer
        except TimeoutError:
            if not self._answers(address):
                self._break(address)
            return OutcomeUnknown(f"{address}: Deadline Exceeded")
        finally:
            self._network.forget(call)
            self._owner.require_alive()
        if isinstance(answer, NeverReached) or (
            isinstance(answer, OutcomeUnknown) and answer.message.startswith("connection lost")
        ):
            self._break(address)
        return answer

    def _answers(self, address: str) -> bool:
        name = self._owner.name
        return self._network.reaches(name, address) and self._network.reaches(address, name)

    def _break(self, address: str) -> None:
        self._broken[address] = None
        if self._targets[self._current] == address:
            self._current = (self._current + 1) % len(self._targets)

    async def _reconnect(self, address: str) -> bool:
        await asyncio.sleep(self._network.delay())
        self._owner.require_alive()
        if self._answers(address):
            self._broken.pop(address, None)
            return True
        await asyncio.sleep(CONNECT_SECONDS_MAX)
        self._owner.require_alive()
        self._break(address)
        return False

    async def stream(
        self, method: str, request: Message, response_type: type[M], *, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[M]:
        """See `services.runtime.transport.Channel.stream`."""
        self._owner.require_alive()
        address = self._targets[self._current]
        stream = self._network.open_stream(
            self._owner, self._caller, address, method, request.SerializeToString(), dict(metadata or {})
        )
        try:
            while True:
                item = await stream.next()
                self._owner.require_alive()
                if item is None:
                    return
                if isinstance(item, ApiError):
                    if isinstance(item, OutcomeUnknown | NeverReached):
                        self._break(address)
                    raise Unavailable(item.message) if isinstance(item, NeverReached) else item
                yield response_type.FromString(item)
        finally:
            stream.ended = True
            self._network.close_stream(stream)

    async def close(self) -> None:
        return


class SimulatedServer:
    """`services.runtime.transport.Server` of one process."""

    def __init__(self, network: Network, address: str, listener: Listener) -> None:
        self._network = network
        self._address = address
        self._listener = listener

    @property
    def address(self) -> str:
        return self._address

    def set_serving(self, serving: bool) -> None:
        self._listener.serving = serving

    async def stop(self, grace_seconds: float) -> None:
        self._network.unlisten(self._address, self._listener)


class SimulatedTransport:
    """`services.runtime.transport.Transport` of one process. A process's name is its address."""

    def __init__(self, network: Network, owner: Owner) -> None:
        self._network = network
        self._owner = owner

    def connect(self, targets: Sequence[str], *, caller: str) -> SimulatedChannel:
        shuffled = list(targets)
        self._owner.rng.shuffle(shuffled)
        return SimulatedChannel(self._network, self._owner, shuffled, caller)

    async def serve(self, address: str, services: Sequence[Service]) -> SimulatedServer:
        handlers: dict[str, tuple[Callable[..., Any], type[Message]]] = {}
        for service in services:
            for method in service.descriptor.methods:
                request_type = message_factory.GetMessageClass(method.input_type)
                path = f"/{service.descriptor.full_name}/{method.name}"
                handlers[path] = (getattr(service.handler, method.name), request_type)
        listener = Listener(self._owner, handlers)
        self._network.listen(address, listener)
        return SimulatedServer(self._network, address, listener)
