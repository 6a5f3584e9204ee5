"""The network seam filled in memory: `Transport` and `Channel` over messages that are delayed, lost, doubled, cut off.

Every message is bytes on the way, so nothing is shared. A host is a process by its name; `cut` blocks one direction
between two hosts, and what is sent meanwhile is lost to the caller's deadline. Connections behave as those of
`services.runtime.grpc_transport`: a call that certainly did not reach a server moves on to the next target; one that may
have been received is `OutcomeUnknown`; a stream whose server fell silent is given up after SILENCE_SECONDS_MAX; a
stream's messages come in order or not at all.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import Message

from protos.orrery.v1.api_pb2 import Status as WireStatus
from services.model.errors import ApiError, Internal, OutcomeUnknown, Unavailable
from services.runtime.status import error_of, status_of
from services.runtime.transport import CallContext, M, Service
from tests.simulation.loop import Owner, VirtualLoop

SILENCE_SECONDS_MAX = 8.0
CONNECT_SECONDS_MAX = 0.5
STREAM_MESSAGES_IN_FLIGHT_MAX = 64
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
class _Listener:
    owner: Owner
    handlers: dict[str, tuple[Callable[..., Any], type[Message]]]
    serving: bool = False


@dataclass(slots=True)
class _Call:
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


class _NeverReached(Unavailable):
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
        self._listeners: dict[str, _Listener] = {}
        self._cut: dict[tuple[str, str], None] = {}
        self._calls: dict[int, _Call] = {}
        self._streams: dict[int, _Stream] = {}
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

    def _break_call(self, call: _Call) -> None:
        if self.reaches(call.address, call.client.name):
            self._settle(call, OutcomeUnknown(f"connection lost during the call: {call.address}"))

    @staticmethod
    def _cancel_handlers(call: _Call) -> None:
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

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    def listen(self, address: str, listener: _Listener) -> None:
        if address in self._listeners:
            raise OSError(f"cannot listen on {address}: the address is taken")
        self._listeners[address] = listener

    def unlisten(self, address: str, listener: _Listener) -> None:
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    def call(
        self, client: Owner, caller: str, address: str, method: str, request: bytes, deadline: float, metadata: Any
    ) -> _Call:
        """Sends a request; the answer comes in the call's future, or never."""
        self._number += 1
        self.messages += 1
        answer: asyncio.Future[bytes | ApiError] = self._loop.create_future()
        call = _Call(self._number, client, caller, address, method, request, metadata, deadline, answer)
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

    def forget(self, call: _Call) -> None:
        self._calls.pop(call.number, None)

    def _arrive(self, call: _Call) -> None:
        if not self.reaches(call.client.name, call.address):
            return
        listener = self._listeners.get(call.address)
        if listener is None:
            self.after(self.delay(), self._settle, call, _NeverReached(f"{call.address}: Connection refused"))
            return
        known = listener.handlers.get(call.method)
        if known is None:
            self._settle(call, Internal(f"{call.address} does not serve {call.method}"))
            return
        call.running.append(listener.owner.start(self._serve(call, listener.owner, *known)))

    async def _serve(self, call: _Call, owner: Owner, handle: Callable[..., Any], request_type: type[Message]) -> None:
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

    def _return(self, call: _Call, answer: bytes | ApiError) -> None:
        if self.reaches(call.address, call.client.name):
            self._settle(call, answer)

    @staticmethod
    def _settle(call: _Call, answer: bytes | ApiError) -> None:
        if not call.answer.done():
            call.answer.set_result(answer)

    def open_stream(
        self, client: Owner, caller: str, address: str, method: str, request: bytes, metadata: Any
    ) -> "_Stream":
        self._number += 1
        self.messages += 1
        stream = _Stream(self, self._loop, self._number, client, address)
        self._streams[stream.number] = stream
        self.after(self.delay(), self._begin_stream, stream, caller, method, request, metadata)
        self.after(SILENCE_SECONDS_MAX, stream.look)
        return stream

    def close_stream(self, stream: "_Stream") -> None:
        self._streams.pop(stream.number, None)
        self.after(self.delay(), stream.cancel_server)

    def _begin_stream(self, stream: "_Stream", caller: str, method: str, request: bytes, metadata: Any) -> None:
        if not self.reaches(stream.client.name, stream.address) or stream.ended:
            return
        listener = self._listeners.get(stream.address)
        if listener is None:
            stream.end(_NeverReached(f"{stream.address}: Connection refused"))
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


class _Stream:
    """The two ends of one server-streaming call."""

    def __init__(self, network: Network, loop: VirtualLoop, number: int, client: Owner, address: str) -> None:
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
                if self._network.chance(self._network.faults.broken_stream):
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
            if not isinstance(answer, _NeverReached):
                break
        assert error is not None
        raise Unavailable(error.message) if isinstance(error, _NeverReached) else error

    async def _call(
        self, method: str, request: bytes, timeout_seconds: float, metadata: dict[str, str]
    ) -> bytes | ApiError:
        self._owner.require_alive()
        address = self._targets[self._current]
        if address in self._broken and not await self._reconnect(address):
            return _NeverReached(f"{address}: failed to connect")
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
        if isinstance(answer, _NeverReached) or (
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
                    if isinstance(item, OutcomeUnknown | _NeverReached):
                        self._break(address)
                    raise Unavailable(item.message) if isinstance(item, _NeverReached) else item
                yield response_type.FromString(item)
        finally:
            stream.ended = True
            self._network.close_stream(stream)

    async def close(self) -> None:
        return


class SimulatedServer:
    """`services.runtime.transport.Server` of one process."""

    def __init__(self, network: Network, address: str, listener: _Listener) -> None:
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
        listener = _Listener(self._owner, handlers)
        self._network.listen(address, listener)
        return SimulatedServer(self._network, address, listener)
