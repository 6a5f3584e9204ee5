"""One server-streaming call: its messages come in order or not at all.

What meets a cut is sent again until it comes through or the other end is given up for dead; a server may not be more than
STREAM_MESSAGES_IN_FLIGHT_MAX messages ahead of its client.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from google.protobuf.message import Message

from protos.orrery.v1.api_pb2 import Status as WireStatus
from services.model.errors import ApiError, Internal, OutcomeUnknown
from services.runtime.status import error_of, status_of
from services.runtime.transport import CallContext
from tests.simulation.loop import Owner, VirtualLoop

SILENCE_SECONDS_MAX = 8.0
STREAM_MESSAGES_IN_FLIGHT_MAX = 64


class Carrier(Protocol):
    """What a stream needs of the network."""

    messages: int

    def stream_breaks(self) -> bool: ...
    def tell(self, actor: str, text: str) -> None: ...
    def bug(self, server: str, method: str, error: BaseException) -> None: ...
    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None: ...
    def at(self, when: float, act: Callable[..., None], *args: Any) -> None: ...
    def delay(self) -> float: ...
    def reaches(self, source: str, target: str) -> bool: ...


class Stream:
    """The two ends of one server-streaming call."""

    def __init__(self, network: Carrier, loop: VirtualLoop, number: int, client: Owner, address: str) -> None:
        self.number = number
        self.client = client
        self.address = address
        self.server: Owner | None = None
        self.task: asyncio.Task[None] | None = None
        self.ended = False
        self._network = network
        self._loop = loop
        self._due = 0.0
        self._inbox: list[bytes | ApiError | None] = []
        self._held: list[bytes | ApiError | None] = []
        self._in_flight = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    # The server's end

    async def serve(self, handle: Callable[..., Any], request: Message, context: CallContext, method: str) -> None:
        owner = self.server
        assert owner is not None
        last: ApiError | None = None
        responses = handle(request, context)
        try:
            async for response in responses:
                while self._in_flight >= STREAM_MESSAGES_IN_FLIGHT_MAX and not self.ended:
                    self._room.clear()
                    await self._room.wait()
                if self.ended or not owner.alive:
                    return
                if self._network.stream_breaks():
                    self._network.tell(owner.name, f"{method} to {self.client.name} breaks off")
                    last = OutcomeUnknown("stream reset")
                    break
                self._send(response.SerializeToString())
        except ApiError as refusal:
            last = error_of(WireStatus.FromString(status_of(refusal).SerializeToString()))
        except Exception as error:  # noqa: BLE001 - the task's root, as in the real transport
            self._network.bug(owner.name, method, error)
            last = Internal(f"{method} failed")
        finally:
            await responses.aclose()
        if owner.alive:
            self._send(last)

    def _send(self, item: bytes | ApiError | None) -> None:
        """Messages keep their order: none is due before the one sent before it."""
        self._network.messages += 1
        self._in_flight += 1
        self._due = max(self._due, self._loop.time() + self._network.delay())
        # The very moment, not a delay: what is due together must not change places by a rounded sum.
        self._network.at(self._due, self._deliver, item)

    def cancel_server(self) -> None:
        if self.task is not None:
            self.task.cancel()

    # On the way

    def _deliver(self, item: bytes | ApiError | None) -> None:
        """What meets a cut is sent again by the kernel until the connection is given up."""
        if self._held or not self._network.reaches(self.address, self.client.name):
            if not self._held:
                self._network.after(SILENCE_SECONDS_MAX / 16, self._deliver_held)
            self._held.append(item)
            return
        self._inbox.append(item)
        self._arrived.set()

    def _deliver_held(self) -> None:
        if self.ended:
            return
        if self._network.reaches(self.address, self.client.name):
            self._inbox += self._held
            self._held = []
            self._arrived.set()
        else:
            self._network.after(SILENCE_SECONDS_MAX / 16, self._deliver_held)

    def look(self) -> None:
        """Keep-alive: a server that did not begin, is stopped, or cannot be reached for so long is given up."""
        if self.ended:
            return
        server = self.server
        dead = server is None or server.stopped or not server.alive
        cut = not self._network.reaches(self.address, self.client.name) or not self._network.reaches(
            self.client.name, self.address
        )
        if dead or cut:
            self.end(OutcomeUnknown(f"{self.address}: keepalive watchdog timeout"))
        else:
            self._network.after(SILENCE_SECONDS_MAX, self.look)

    def end(self, error: ApiError) -> None:
        if not self.ended:
            self.ended = True
            self._inbox.append(error)
            self._arrived.set()
            self._room.set()
            self.cancel_server()

    # The client's end

    async def next(self) -> bytes | ApiError | None:
        while not self._inbox:
            self._arrived.clear()
            await self._arrived.wait()
        item = self._inbox.pop(0)
        self._in_flight -= 1
        self._room.set()
        return item
