"""Get and list, from the cache, as fresh as the caller asks.

`resourceVersion` unset: as fresh as a quorum read; "0": whatever is here; N: not older than N. A list that is limited
continues at the version of its first page: from the cache while nothing of that kind has changed since, else from the
store's past, which compaction may have taken (410).
"""

import base64
import binascii
import json

from apiserver.cache import Cache
from apiserver.core.attributes import Attributes, ObjectFilter, parse_filter
from apiserver.core.keys import registry_prefix
from apiserver.core.registry import Entry, entry_of
from apiserver.core.versions import pack_list, parse_version, revision_of
from apiserver.ledgers import Ledgers
from apiserver.objects import find_kind, not_found
from apiserver.store.protocol import Store, StoreCompacted, StoreError
from protos.orrery.v1.api_pb2 import GetRequest, ListRequest, ListResponse, Object
from services.model.errors import BadRequest, Expired, OutcomeUnknown, Unavailable
from services.model.kinds import Kind
from services.wire.allocation import allocation_message
from services.wire.attributes import selector_fields
from services.wire.metadata import read_envelope

# An answer stays well below the receive limit of clients (64 MiB) and keeps the event loop free for others.
PAGE_ITEMS_MAX = 5_000
PAGE_BYTES_MAX = 16 * 1024 * 1024
VERSION_WAIT_SECONDS_MAX = 3.0
_STORE_PAGE = 1_000


def attributes_of(kind: Kind, value: bytes) -> Attributes:
    """What selectors may ask of an object's bytes."""
    envelope = read_envelope(value)
    return Attributes(envelope.metadata.labels, selector_fields(kind.resource, value, envelope))


class Reader:
    """Answers Get and List."""

    def __init__(self, store: Store, cache: Cache, ledgers: Ledgers) -> None:
        self._store = store
        self._cache = cache
        self._ledgers = ledgers

    async def get(self, request: GetRequest) -> Object:
        """Raises NotFound, BadRequest, Unavailable, OutcomeUnknown (a version that does not come)."""
        kind = find_kind(request.resource)
        await self._wait(request.resource_version)
        path = f"{request.namespace}/{request.name}" if kind.namespaced else request.name
        if kind.read_only:
            if request.name not in self._cache.registry.ledger_nodes():
                raise not_found(kind, path)
            return self._allocation(request.name)
        entry = self._cache.registry.get(kind, path)
        if entry is None:
            raise not_found(kind, path)
        return Object(value=entry.value, resource_version=str(entry.version))

    async def _wait(self, resource_version: str) -> None:
        if not self._cache.filled.is_set():
            raise Unavailable("this API server has not read the store yet", retry_after_seconds=1)
        if resource_version == "0":
            return
        if not resource_version:
            await self._cache.wait_fresh()
            return
        version = parse_version(resource_version)
        if version is None:
            raise BadRequest(f"resourceVersion {resource_version!r} is not one that this server gave")
        if not await self._cache.wait_for(revision_of(version), VERSION_WAIT_SECONDS_MAX):
            now = pack_list(self._cache.registry.revision)
            raise OutcomeUnknown(f"Too large resource version: {version}, current: {now}", retry_after_seconds=1)

    def _allocation(self, node: str) -> Object:
        revision, _ = self._ledgers.taken(node)
        message = allocation_message(node, self._ledgers.ledger(node))
        return Object(value=message.SerializeToString(), resource_version=str(pack_list(revision)))

    async def list(self, request: ListRequest) -> ListResponse:
        """One page. Raises BadRequest, Expired, Unavailable, OutcomeUnknown."""
        kind = find_kind(request.resource)
        wanted = parse_filter(kind, request.namespace, request.label_selector, request.field_selector)
        limit = request.limit if 0 < request.limit < PAGE_ITEMS_MAX else PAGE_ITEMS_MAX
        token: str = getattr(request, "continue")
        if token:
            if request.resource_version:
                raise BadRequest("resourceVersion is not to be given with continue: the token has its own")
            revision, after = _read_token(token)
        else:
            await self._wait(request.resource_version)
            revision, after = self._cache.registry.revision, ""
        if kind.read_only:
            items = [self._allocation(node) for node in self._cache.registry.ledger_nodes()]
            return ListResponse(items=items, resource_version=str(pack_list(revision)))
        objects = self._cache.registry.objects[kind.resource]
        if not token or revision_of(objects.changed_version) <= revision <= self._cache.registry.revision:
            return self._page_from_cache(kind, wanted, limit, revision, after)
        return await self._page_from_store(kind, wanted, limit, revision, after)

    def _page_from_cache(self, kind: Kind, wanted: ObjectFilter, limit: int, revision: int, after: str) -> ListResponse:
        objects = self._cache.registry.objects[kind.resource]
        paths = objects.paths_after(wanted.namespace, after)
        page = _Page(kind, wanted, limit)
        for at, path in enumerate(paths):
            page.add(objects.by_path[path])
            if page.full and at + 1 < len(paths):
                remaining = 0 if wanted.needs_attributes else len(paths) - at - 1
                return page.answer(revision, path, remaining)
        return page.answer(revision, "", 0)

    async def _page_from_store(
        self, kind: Kind, wanted: ObjectFilter, limit: int, revision: int, after: str
    ) -> ListResponse:
        prefix = registry_prefix(kind, wanted.namespace)
        key = registry_prefix(kind) + after.encode()
        page = _Page(kind, wanted, limit)
        while True:
            try:
                found = await self._store.list(prefix, after=key, limit=_STORE_PAGE, revision=revision)
            except StoreCompacted as error:
                raise Expired(
                    "The provided continue parameter is too old to display a consistent list result. You must start a new list"
                ) from error
            except StoreError as error:
                raise Unavailable(f"the store does not answer: {error}", retry_after_seconds=1) from error
            for at, record in enumerate(found.records):
                entry = entry_of(record)
                page.add(entry)
                if page.full and (found.more or at + 1 < len(found.records)):
                    return page.answer(revision, entry.path, 0)
            if not found.more:
                return page.answer(revision, "", 0)
            key = found.records[-1].key


class _Page:
    """Collects the items of one page."""

    def __init__(self, kind: Kind, wanted: ObjectFilter, limit: int) -> None:
        self._kind = kind
        self._wanted = wanted
        self._limit = limit
        self._bytes = 0
        self._items: list[Object] = []

    @property
    def full(self) -> bool:
        return len(self._items) >= self._limit or self._bytes >= PAGE_BYTES_MAX

    def add(self, entry: Entry) -> None:
        if self._wanted.needs_attributes and not self._wanted.matches(attributes_of(self._kind, entry.value)):
            return
        self._items.append(Object(value=entry.value, resource_version=str(entry.version)))
        self._bytes += len(entry.value)

    def answer(self, revision: int, last_path: str, remaining: int) -> ListResponse:
        answer = ListResponse(
            items=self._items, resource_version=str(pack_list(revision)), remaining_item_count=remaining
        )
        if last_path:
            setattr(answer, "continue", _write_token(revision, last_path))
        return answer


def _write_token(revision: int, path: str) -> str:
    return base64.urlsafe_b64encode(json.dumps({"v": 1, "rv": revision, "after": path}).encode()).decode()


def _read_token(token: str) -> tuple[int, str]:
    try:
        parsed = json.loads(base64.urlsafe_b64decode(token.encode()))
        revision, after = parsed["rv"], parsed["after"]
    except (binascii.Error, UnicodeDecodeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequest("continue key is not valid: it is none that this server gave") from error
    if not (isinstance(revision, int) and 0 < revision < 1 << 51 and isinstance(after, str)):
        raise BadRequest("continue key is not valid: it is none that this server gave")
    return revision, after
