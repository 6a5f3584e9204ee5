"""What the write paths share: parsing requests, the current version of an object, fences, new ids."""

import random
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import Message

from apiserver.cache import Cache
from apiserver.committer import Committer
from apiserver.core.keys import epoch_key, registry_key
from apiserver.core.registry import Entry, entry_of
from apiserver.ledgers import Ledgers, Releaser, unchanged
from apiserver.store.protocol import Compare, Record, Store, StoreError
from protos.orrery.v1.api_pb2 import Fence
from services.model.clock import Clock
from services.model.errors import BadRequest, Fenced, Forbidden, NotFound, Unavailable
from services.model.kinds import KIND_BY_RESOURCE, Kind
from services.wire.kinds import message_class
from services.wire.pod import PodDecoder

OBJECT_BYTES_MAX = 1_500_000
# How often a write without a version of its own looks again after a lost comparison.
ATTEMPTS_MAX = 16


@dataclass(frozen=True, slots=True)
class Tools:
    """The parts that every write path works with."""

    store: Store
    cache: Cache
    committer: Committer
    ledgers: Ledgers
    releaser: Releaser
    decoder: PodDecoder
    clock: Clock
    rng: random.Random

    def new_id(self) -> bytes:
        """16 bytes that no other write has."""
        return self.rng.randbytes(16)

    def new_uid(self) -> str:
        """A random UUID (version 4)."""
        number = self.rng.getrandbits(128) & ~(0xF << 76) | (0x4 << 76)
        text = f"{number & ~(0x3 << 62) | (0x2 << 62):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def find_writable_kind(resource: str) -> Kind:
    """Raises BadRequest for an unknown resource, Forbidden for one that is only a view."""
    kind = find_kind(resource)
    if kind.read_only:
        raise Forbidden(f"{resource} is a view of the ledger: get and list it; binds and releases write it")
    return kind


def find_kind(resource: str) -> Kind:
    """Raises BadRequest for an unknown resource."""
    kind = KIND_BY_RESOURCE.get(resource)
    if kind is None:
        raise BadRequest(f"there is no resource {resource!r}; there are: {', '.join(sorted(KIND_BY_RESOURCE))}")
    return kind


def parse_object(kind: Kind, value: bytes) -> Any:
    """The message in a request. Raises BadRequest."""
    if len(value) > OBJECT_BYTES_MAX:
        raise BadRequest(f"the object has {len(value)} bytes; the limit is {OBJECT_BYTES_MAX}")
    try:
        message = message_class(kind).FromString(value)
    except ProtobufDecodeError as error:
        raise BadRequest(f"the value is no {kind.name}: {error}") from error
    return with_type(kind, message)


def with_type(kind: Kind, message: Any) -> Any:
    """Sets apiVersion and kind. Raises BadRequest when the object says it is of another."""
    if message.kind and (message.kind != kind.name or message.api_version != kind.api_version):
        raise BadRequest(f"the object is a {message.api_version} {message.kind}, not a {kind.api_version} {kind.name}")
    message.api_version, message.kind = kind.api_version, kind.name
    return message


def stored_object(kind: Kind, entry: Entry) -> Any:
    """The message of a stored entry."""
    return message_class(kind).FromString(entry.value)


def serialize(message: Message) -> bytes:
    """The bytes to store: the version travels beside them, never in them."""
    message.metadata.ClearField("resource_version")  # type: ignore[attr-defined]
    return message.SerializeToString(deterministic=True)


def not_found(kind: Kind, path: str) -> NotFound:
    """In Kubernetes' words: pods "x" not found."""
    group = f".{kind.group}" if kind.group else ""
    return NotFound(f'{kind.resource}{group} "{path.rpartition("/")[2]}" not found')


def from_record(record: Record | None) -> Entry | None:
    return entry_of(record) if record is not None else None


async def read_entry(tools: Tools, kind: Kind, namespace: str, name: str) -> Entry | None:
    """The object as the store has it now. Raises Unavailable."""
    try:
        return from_record(await tools.store.get(registry_key(kind, namespace, name)))
    except StoreError as error:
        raise Unavailable(f"the store does not answer: {error}", retry_after_seconds=1) from error


def cached_entry(tools: Tools, kind: Kind, namespace: str, name: str) -> Entry | None:
    return tools.cache.registry.get(kind, f"{namespace}/{name}" if kind.namespaced else name)


def fence_compares(fence: Fence | None) -> tuple[Compare, ...]:
    """The comparison that makes a write happen only in its caller's epoch."""
    return (unchanged(epoch_key(fence.lease), fence.token),) if fence is not None and fence.lease else ()


def check_fence(tools: Tools, fence: Fence | None) -> None:
    """Raises Fenced when the cache knows a newer epoch already."""
    if fence is None or not fence.lease:
        return
    record = tools.cache.registry.plain.get(epoch_key(fence.lease))
    if record is not None and record.mod_revision > fence.token:
        raise Fenced(f"the epoch of {fence.lease} is {record.mod_revision}; the fence is of {fence.token}")


async def raise_if_fenced(tools: Tools, fence: Fence | None) -> None:
    """After a lost comparison: raises Fenced when it was the epoch's. Raises Unavailable."""
    if fence is None or not fence.lease:
        return
    key = epoch_key(fence.lease)
    await tools.cache.read_ledger((key,))
    record = tools.cache.registry.plain.get(key)
    if record is None or record.mod_revision != fence.token:
        now = record.mod_revision if record is not None else "none"
        raise Fenced(f"the epoch of {fence.lease} is {now}; the fence is of {fence.token}")
