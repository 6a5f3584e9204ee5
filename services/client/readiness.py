"""Readiness of a process that lives by the API servers: it serves while it is ready itself and one of them says so too."""

from collections.abc import Callable

from grpc_health.v1 import health_pb2

from services.model.clock import Clock
from services.model.errors import ApiError
from services.runtime.logging import Logger
from services.runtime.transport import Channel, Server

PERIOD_SECONDS = 1.0
TIMEOUT_SECONDS = 2.0
_CHECK = "/grpc.health.v1.Health/Check"


async def why_not_serving(channel: Channel, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
    """What grpc.health.v1 of the server that answers says: empty when it serves, else what is wrong."""
    try:
        answer = await channel.unary(
            _CHECK,
            health_pb2.HealthCheckRequest(),
            health_pb2.HealthCheckResponse,
            timeout_seconds=timeout_seconds,
        )
    except ApiError as error:
        return error.message
    return "" if answer.status == health_pb2.HealthCheckResponse.SERVING else "the server says that it does not serve"


async def watch_readiness(
    channel: Channel, clock: Clock, server: Server, ready: Callable[[], bool], log: Logger
) -> None:
    """Keeps what `server` answers to health checks true, until it is cancelled. A change is logged with its reason."""
    serving: bool | None = None
    while True:
        wrong = await why_not_serving(channel) if ready() else "not ready yet"
        if (not wrong) is not serving:
            serving = not wrong
            server.set_serving(serving)
            log.info("serving" if serving else "not_serving", reason=wrong)
        await clock.sleep(PERIOD_SECONDS)
