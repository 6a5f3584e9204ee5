"""The network seam filled in memory: `Transport` and `Channel` over messages that are delayed, lost, doubled, cut off.

Every message is bytes on the way, so nothing is shared. A host is a process by its name; `cut` blocks one direction
between two hosts, and what is sent meanwhile is lost to the caller's deadline. Connections behave as those of
`services.runtime.grpc_transport`: a call that certainly did not reach a server moves on to the next target; one that may
have been received is `OutcomeUnknown`; a stream whose server fell silent is given up after SILENCE_SECONDS_MAX; a
stream's messages come in order or not at all.
"""

import asyncio
import random
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from protos.orrery.v1.api_pb2 import Status as WireStatus
from services.model.errors import ApiError, Internal, OutcomeUnknown, Unavailable
from services.runtime.status import error_of, status_of
from services.runtime.transport import CallContext
from tests.simulation.loop import Owner, VirtualLoop
from tests.simulation.streams import SILENCE_SECONDS_MAX, Stream

# A doubled request comes once more after up to this time: what a proxy or a stopped server may do to it.
ECHO_SECONDS_MAX = 6.0


@dataclass(slots=True)
class NetworkFaults:
    """Chances for each message; all zero is a network that only takes its time."""

    delay_seconds: tuple[float, float] = (0.0002, 0.004)
    slow: float = 0.0
    slow_seconds_max: float = 1.5
    lost_request: float = 0.0
    lost_reply: float = 0.0
    doubled_request: float = 0.0
    broken_stream: float = 0.0


@dataclass(slots=True)
class Listener:
    owner: Owner
    handlers: dict[str, tuple[Callable[..., Any], type[Message]]]
    serving: bool = False


@dataclass(slots=True)
class Call:
    """One unary call under way. `answer` is set once: bytes, a refusal, or a fault of the connection."""

    number: int
    client: Owner
    caller: str
    address: str
    method: str
    request: bytes
    metadata: dict[str, str]
    deadline: float
    answer: "asyncio.Future[bytes | ApiError]"
    running: list["asyncio.Task[None]"] = field(default_factory=list)


class NeverReached(Unavailable):
    """The call did not reach the server: the next target may be tried."""


class Network:
    """All hosts' messages. `on_reply(server, method, request, response)` sees each success that leaves a server,
    `on_bug(server, method, error)` each handler that failed by its own fault, `tell(actor, text)` the story.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        tell: Callable[[str, str], None],
        on_reply: Callable[[str, str, bytes, bytes], None],
        on_bug: Callable[[str, str, BaseException], None],
    ) -> None:
        self.faults = NetworkFaults()
        self.messages = 0
        self.last_target: dict[str, str] = {}  # by client: the server it spoke to last
        self._loop = loop
        self._rng = rng
        self._tell = tell
        self._on_reply = on_reply
        self._on_bug = on_bug
        self._world: Context = copy_context()
        self._listeners: dict[str, Listener] = {}
        self._cut: dict[tuple[str, str], None] = {}
        self._calls: dict[int, Call] = {}
        self._streams: dict[int, Stream] = {}
        self._number = 0

    # Faults

    def cut(self, source: str, target: str) -> None:
        self._cut[source, target] = None

    def heal(self) -> None:
        self._cut.clear()

    def reaches(self, source: str, target: str) -> bool:
        return (source, target) not in self._cut

    def died(self, owner: Owner) -> None:
        """The kernel closes the sockets of a process that is gone: the other ends learn it, if a message can reach them."""
        for address in [address for address, listener in self._listeners.items() if listener.owner is owner]:
            del self._listeners[address]
        for call in list(self._calls.values()):
            if call.address == owner.name:
                self.after(self.delay(), self._break_call, call)
            elif call.client is owner:
                self.after(self.delay(), self._cancel_handlers, call)
        for stream in list(self._streams.values()):
            if owner in (stream.server, stream.client):
                self.after(self.delay(), stream.end, OutcomeUnknown(f"connection to {stream.address} lost"))

    def _break_call(self, call: Call) -> None:
        if self.reaches(call.address, call.client.name):
            self._settle(call, OutcomeUnknown(f"connection lost during the call: {call.address}"))

    @staticmethod
    def _cancel_handlers(call: Call) -> None:
        for task in call.running:
            task.cancel()

    # Messages

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """The world's own timer: it belongs to no process, so no process's end stops it."""
        self._loop.call_later(seconds, act, *args, context=self._world)

    def at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        self._loop.call_at(when, act, *args, context=self._world)

    def delay(self) -> float:
        faults = self.faults
        if faults.slow and self._rng.random() < faults.slow:
            return self._rng.uniform(0.0, faults.slow_seconds_max)
        return self._rng.uniform(*faults.delay_seconds)

    def stream_breaks(self) -> bool:
        return self.chance(self.faults.broken_stream)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    def listen(self, address: str, listener: Listener) -> None:
        if address in self._listeners:
            raise OSError(f"cannot listen on {address}: the address is taken")
        self._listeners[address] = listener

    def unlisten(self, address: str, listener: Listener) -> None:
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    def call(
        self, client: Owner, caller: str, address: str, method: str, request: bytes, deadline: float, metadata: Any
    ) -> Call:
        """Sends a request; the answer comes in the call's future, or never."""
        self._number += 1
        self.messages += 1
        answer: asyncio.Future[bytes | ApiError] = self._loop.create_future()
        call = Call(self._number, client, caller, address, method, request, metadata, deadline, answer)
        self._calls[call.number] = call
        self.last_target[client.name] = address
        if self.chance(self.faults.lost_request):
            self._tell(client.name, f"{method} to {address} is lost")
            return call
        self.after(self.delay(), self._arrive, call)
        # A creation that comes again after its object is gone makes another: no API server could tell.
        if not method.endswith("/Create") and self.chance(self.faults.doubled_request):
            self._tell(client.name, f"{method} to {address} will come twice")
            self.after(self.delay() + self._rng.uniform(0.0, ECHO_SECONDS_MAX), self._arrive, call)
        return call

    def forget(self, call: Call) -> None:
        self._calls.pop(call.number, None)

    def _arrive(self, call: Call) -> None:
        if not self.reaches(call.client.name, call.address):
            return
        listener = self._listeners.get(call.address)
        if listener is None:
            self.after(self.delay(), self._settle, call, NeverReached(f"{call.address}: Connection refused"))
            return
        known = listener.handlers.get(call.method)
        if known is None:
            self._settle(call, Internal(f"{call.address} does not serve {call.method}"))
            return
        call.running.append(listener.owner.start(self._serve(call, listener.owner, *known)))

    async def _serve(self, call: Call, owner: Owner, handle: Callable[..., Any], request_type: type[Message]) -> None:
        """In the server's process: runs the handler until the client's deadline and sends its answer."""
        answer: bytes | ApiError
        try:
            async with asyncio.timeout(max(0.0, call.deadline - self._loop.time())):
                context = CallContext(call.caller, call.metadata)
                response = await handle(request_type.FromString(call.request), context)
            answer = response.SerializeToString()
        except ApiError as refusal:
            answer = error_of(WireStatus.FromString(status_of(refusal).SerializeToString()))
        except TimeoutError:
            return
        except Exception as error:  # noqa: BLE001 - the task's root, as in the real transport
            self._on_bug(owner.name, call.method, error)
            answer = Internal(f"{call.method} failed")
        if not owner.alive:
            return
        self.messages += 1
        if isinstance(answer, bytes):
            self._on_reply(owner.name, call.method, call.request, answer)
        if self.chance(self.faults.lost_reply):
            self._tell(owner.name, f"the answer of {call.method} to {call.client.name} is lost")
            return
        self.after(self.delay(), self._return, call, answer)

    def _return(self, call: Call, answer: bytes | ApiError) -> None:
        if self.reaches(call.address, call.client.name):
            self._settle(call, answer)

    @staticmethod
    def _settle(call: Call, answer: bytes | ApiError) -> None:
        if not call.answer.done():
            call.answer.set_result(answer)

    def open_stream(
        self, client: Owner, caller: str, address: str, method: str, request: bytes, metadata: Any
    ) -> Stream:
        self._number += 1
        self.messages += 1
        stream = Stream(self, self._loop, self._number, client, address)
        self._streams[stream.number] = stream
        self.after(self.delay(), self._begin_stream, stream, caller, method, request, metadata)
        self.after(SILENCE_SECONDS_MAX, stream.look)
        return stream

    def close_stream(self, stream: Stream) -> None:
        self._streams.pop(stream.number, None)
        self.after(self.delay(), stream.cancel_server)

    def _begin_stream(self, stream: Stream, caller: str, method: str, request: bytes, metadata: Any) -> None:
        if not self.reaches(stream.client.name, stream.address) or stream.ended:
            return
        listener = self._listeners.get(stream.address)
        if listener is None:
            stream.end(NeverReached(f"{stream.address}: Connection refused"))
            return
        handle, request_type = listener.handlers[method]
        stream.server = listener.owner
        stream.task = listener.owner.start(
            stream.serve(handle, request_type.FromString(request), CallContext(caller, metadata), method)
        )

    def bug(self, server: str, method: str, error: BaseException) -> None:
        self._on_bug(server, method, error)

    def tell(self, actor: str, text: str) -> None:
        self._tell(actor, text)
