"""`python -m services.runtime.probe host:port`: does a process say that it serves? For container health checks.

Asks grpc.health.v1 and exits 0 for SERVING, 1 for anything else, 2 for wrong usage. What a process answers covers what it
depends on: an API server asks etcd, a scheduler and kubelet_sim ask an API server, the trace store writes to its file. A
probe runs every few seconds in every container, so it imports gRPC alone and spells the two messages out: an empty
HealthCheckRequest, and a HealthCheckResponse whose field 1 is the status.
"""

import sys
from collections.abc import Callable
from typing import Any

import grpc

TIMEOUT_SECONDS = 3.0
_METHOD = "/grpc.health.v1.Health/Check"
_STATUS = {b"": "UNKNOWN", b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING", b"\x08\x03": "SERVICE_UNKNOWN"}


def probe(address: str, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
    """What the server at `address` answers, or why it does not."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        check: Callable[..., bytes] = channel.unary_unary(_METHOD, request_serializer=None, response_deserializer=None)
        try:
            answer = check(b"", timeout=timeout_seconds)
        except grpc.RpcError as error:
            call: Any = error
            return f"{call.code().name}: {call.details()}"
    return _STATUS.get(answer, "an answer that is no HealthCheckResponse")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not arguments[0].rpartition(":")[2].isdigit():
        sys.stderr.write("usage: python -m services.runtime.probe host:port\n")
        return 2
    said = probe(arguments[0])
    sys.stdout.write(f"{arguments[0]}: {said}\n")
    return 0 if said == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
