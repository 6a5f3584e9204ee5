"""The seam to the network.

Shells and servers speak through these Protocols alone. `__main__` fills them with gRPC
(`services.runtime.grpc_transport`); a simulation fills them with an in-memory network on virtual time. A service is an
object whose async methods carry the names of the RPCs of a protobuf service descriptor; both transports dispatch by it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a handler may know of a call. `caller` is the client's name; `metadata` has lower-case keys."""

    caller: str
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the caller, empty when it sent none."""
        return self.metadata.get("traceparent", "")


class Channel(Protocol):
    """A way to one service that may have several servers: a call goes to one that answers."""

    async def unary(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        timeout_seconds: float,
        metadata: Mapping[str, str] | None = None,
    ) -> M:
        """Calls `method` ("/orrery.v1.Api/Get").

        Raises:
            Unavailable: no server was reached; the call certainly did not run.
            OutcomeUnknown: the deadline passed or the connection broke after the call was sent.
            ApiError: the server's own refusal, in its class.
        """
        ...

    def stream(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[M]:
        """Calls a server-streaming method; raises as `unary` does, at any item."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Service:
    """A protobuf service and the object that serves it: `async def Get(self, request, context)`, and for
    server-streaming RPCs `def Watch(self, request, context) -> AsyncIterator`.
    """

    descriptor: ServiceDescriptor
    handler: object


class Server(Protocol):
    @property
    def address(self) -> str:
        """host:port that it listens on."""
        ...

    def set_serving(self, serving: bool) -> None:
        """What grpc.health.v1 answers from now on."""
        ...

    async def stop(self, grace_seconds: float) -> None: ...


class Transport(Protocol):
    """Where shells get channels and servers from."""

    def connect(self, targets: Sequence[str], *, caller: str) -> Channel:
        """A channel to whichever of `targets` (host:port) answers; does not wait for a connection."""
        ...

    async def serve(self, address: str, services: Sequence[Service]) -> Server:
        """Listens on `address` (port 0: any free one) and serves `services`, health and reflection.

        Raises:
            OSError: the address is taken or not ours.
        """
        ...
