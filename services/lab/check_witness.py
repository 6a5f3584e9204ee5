"""The witness: `python -m services.lab.check_witness` reads etcd by itself and prints its result as JSON.

It speaks to etcd through `etcd3` (cslab-etcd3), not through the mesh's own client, and takes the stored values apart by
itself, down to the bytes that the API server would serve. It ends with 0 when all agrees, 1 on any difference, 2 with a
sentence when it could not look.
"""

import argparse
import json
import struct
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import etcd3
import grpc

from services.lab.check import (
    EXIT_AGREES,
    EXIT_CANNOT_CHECK,
    EXIT_DIFFERS,
    KIND_FITS,
    SCHEDULER_NAMES,
    CheckResult,
    Difference,
)
from services.lab.check_state import Cluster, verify
from services.wire.ledger import read_returned, read_taken
from services.wire.metadata import DecodeError
from services.wire.node import node_view
from services.wire.pod import PodDecoder
from services.wire.topology import topology_view

PODS = b"/orrery/registry/core/pods/"
NODES = b"/orrery/registry/core/nodes/"
TOPOLOGIES = b"/orrery/registry/orrery.dev/nodetopologies/"
LEDGERS = b"/orrery/ledger/"
# magic, storage version, encoding, index in its transaction, write id; then the object.
HEADER = struct.Struct(">4sBBH16s")
MAGIC, STORAGE_VERSION, PROTOBUF = b"orr1", 1, 1
INDEX_BITS = 12
PAGE = 500
CALL_SECONDS_MAX = 30
PAUSE_SECONDS = 1.0
GRPC_OPTIONS = (("grpc.max_receive_message_length", 64 * 1024 * 1024), ("grpc.enable_http_proxy", 0))


def read_cluster(endpoint: str) -> Cluster:
    """Everything that the check needs, at one revision."""
    host, _, port = endpoint.rpartition(":")
    client = etcd3.client(host=host, port=int(port), timeout=CALL_SECONDS_MAX, grpc_options=GRPC_OPTIONS)
    try:
        # A key that does not matter: the answer's header says where the store stands.
        revision = client.get_range_response(NODES, NODES, limit=1).header.revision
        cluster = Cluster(revision)
        reader = _Reader(cluster)
        for prefix, take in (
            (NODES, reader.node),
            (TOPOLOGIES, reader.topology),
            (LEDGERS, reader.ledger),
            (PODS, reader.pod),
        ):
            for key, value, mod_revision in pages(client, prefix, revision):
                try:
                    take(key[len(prefix) :].decode(), value, mod_revision)
                except (DecodeError, ValueError, struct.error) as error:
                    cluster.unreadable.append(Difference("unreadable value", key.decode(errors="replace"), str(error)))
        return cluster
    finally:
        client.close()


def pages(client: etcd3.Etcd3Client, prefix: bytes, revision: int) -> Iterator[tuple[bytes, bytes, int]]:
    """(key, value, mod_revision) of every key below `prefix` at `revision`, PAGE keys a call."""
    begin, end = prefix, prefix[:-1] + bytes((prefix[-1] + 1,))
    while True:
        response = client.get_range_response(begin, end, limit=PAGE, revision=revision)
        for kv in response.kvs:
            yield kv.key, kv.value, kv.mod_revision
        if not response.more:
            return
        begin = response.kvs[-1].key + b"\0"


class _Reader:
    """Puts decoded values into a cluster. Each method takes a key without its prefix."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._decoder = PodDecoder()

    def node(self, name: str, value: bytes, mod_revision: int) -> None:
        self._cluster.at(name).node = node_view(*opened(value, mod_revision))

    def topology(self, name: str, value: bytes, mod_revision: int) -> None:
        data, _ = opened(value, mod_revision)
        self._cluster.at(name).devices = topology_view(data).devices

    def ledger(self, name: str, value: bytes, _mod_revision: int) -> None:
        node, _, half = name.rpartition("/")
        if half == "taken":
            self._cluster.at(node).taken = read_taken(value)
        elif half == "returned":
            self._cluster.at(node).returned = read_returned(value)
        else:
            raise ValueError(f"{half!r} is no half of a ledger")

    def pod(self, name: str, value: bytes, mod_revision: int) -> None:
        pod = self._decoder.view(*opened(value, mod_revision))
        if pod.key != name:
            raise ValueError(f"the key says {name}, the pod {pod.key}")
        self._cluster.pods.append(pod)


def opened(stored: bytes, mod_revision: int) -> tuple[bytes, str]:
    """The object's bytes and its resource version. Raises ValueError when the header is not ours."""
    magic, storage_version, encoding, index, _ = HEADER.unpack_from(stored)
    if (magic, storage_version, encoding) != (MAGIC, STORAGE_VERSION, PROTOBUF):
        raise ValueError(f"header {magic!r}, storage version {storage_version}, encoding {encoding}")
    return stored[HEADER.size :], str(mod_revision << INDEX_BITS | index)


def check(
    read: Callable[[], Cluster],
    scheduler_names: tuple[str, ...],
    settle_seconds: float,
    *,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> CheckResult:
    """Looks until all agrees, something differs that time does not mend, or `settle_seconds` are over."""
    started = now()
    while True:
        result = verify(read(), scheduler_names)
        waited = now() - started
        if waited >= settle_seconds or {each.kind for each in result.differences} != {KIND_FITS}:
            return CheckResult.from_json({**result.to_json(), "seconds": round(waited, 3)})
        pause(PAUSE_SECONDS)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="check_witness", description="Checks what etcd holds; prints JSON.")
    parser.add_argument("--endpoint", required=True, help="etcd's host:port")
    parser.add_argument("--scheduler-name", action="append", default=[], help="a schedulerName that the mesh serves")
    parser.add_argument("--settle-seconds", type=float, default=0.0, help="how long pending pods may take to be bound")
    options = parser.parse_args(arguments)
    try:
        names = tuple(options.scheduler_name) or SCHEDULER_NAMES
        result = check(partial(read_cluster, options.endpoint), names, options.settle_seconds)
    except (etcd3.exceptions.Etcd3Exception, grpc.RpcError) as error:
        said = error.details() if isinstance(error, grpc.Call) else type(error).__name__
        sys.stderr.write(f"etcd at {options.endpoint} could not be read: {said}; is the mesh up?\n")
        return EXIT_CANNOT_CHECK
    sys.stdout.write(json.dumps(result.to_json()) + "\n")
    return EXIT_AGREES if result.agrees else EXIT_DIFFERS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
