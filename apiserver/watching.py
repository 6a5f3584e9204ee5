"""Watch: events after a version, in order, read from the kind's event window.

A watcher is a place in the window and nothing more. When it falls so far behind that its place has left the window, it
gets a 410 `Expired` and its stream ends; it lists again.
"""

import asyncio
from collections.abc import AsyncIterator

from apiserver.cache import Cache
from apiserver.core.attributes import Attributes, ObjectFilter, parse_filter
from apiserver.core.eventlog import EventLog, LogEvent
from apiserver.core.versions import pack_list, parse_version, revision_of
from apiserver.objects import find_kind
from apiserver.reads import VERSION_WAIT_SECONDS_MAX, attributes_of
from protos.orrery.v1.api_pb2 import ADDED, BOOKMARK, DELETED, ERROR, MODIFIED, WatchEvent, WatchRequest, WatchResponse
from services.model.clock import Clock
from services.model.errors import BadRequest, Expired, OutcomeUnknown, Unavailable
from services.model.kinds import Kind
from services.runtime.status import status_of

EVENTS_A_MESSAGE_MAX = 500
BYTES_A_MESSAGE_MAX = 1024 * 1024
BOOKMARK_SECONDS = 30.0


class Watcher:
    """Answers Watch."""

    def __init__(self, cache: Cache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock

    async def watch(self, request: WatchRequest) -> AsyncIterator[WatchResponse]:
        """Raises BadRequest; Expired comes as an ERROR event, as Kubernetes sends it."""
        kind = find_kind(request.resource)
        if kind.read_only:
            raise BadRequest(f"{kind.resource} is a view of the ledger and cannot be watched; get and list it")
        wanted = parse_filter(kind, request.namespace, request.label_selector, request.field_selector)
        if not self._cache.filled.is_set():
            raise Unavailable("this API server has not read the store yet", retry_after_seconds=1)
        if request.resource_version in ("", "0"):
            if not request.resource_version:
                await self._cache.wait_fresh()
            version = pack_list(self._cache.registry.revision)
            for response in self._present(kind, wanted):
                yield response
        else:
            version = await self._start_version(request.resource_version)
        async for response in self._follow(kind, wanted, version, bookmarks=request.allow_bookmarks):
            yield response

    async def _start_version(self, text: str) -> int:
        version = parse_version(text)
        if version is None:
            raise BadRequest(f"resourceVersion {text!r} is not one that this server gave")
        if not await self._cache.wait_for(revision_of(version), VERSION_WAIT_SECONDS_MAX):
            now = pack_list(self._cache.registry.revision)
            raise OutcomeUnknown(f"Too large resource version: {version}, current: {now}", retry_after_seconds=1)
        return version

    def _present(self, kind: Kind, wanted: ObjectFilter) -> list[WatchResponse]:
        """What is there now, as ADDED events."""
        objects = self._cache.registry.objects[kind.resource]
        responses = [WatchResponse()]
        for path in objects.paths_after(wanted.namespace, ""):
            entry = objects.by_path[path]
            if wanted.needs_attributes and not wanted.matches(attributes_of(kind, entry.value)):
                continue
            if len(responses[-1].events) >= EVENTS_A_MESSAGE_MAX:
                responses.append(WatchResponse())
            responses[-1].events.add(type=ADDED, value=entry.value, resource_version=str(entry.version))
        return responses

    async def _follow(
        self, kind: Kind, wanted: ObjectFilter, version: int, *, bookmarks: bool
    ) -> AsyncIterator[WatchResponse]:
        log = self._cache.registry.objects[kind.resource].log
        place = log.place_after(version)
        last_sent = self._clock.monotonic()
        while True:
            if place is None or log is not self._cache.registry.objects[kind.resource].log:
                # Out of the window, or the cache was filled anew and the events between are lost to it.
                yield _expired(version, log)
                return
            changed = self._cache.changed(kind.resource)
            events = log.read(place, EVENTS_A_MESSAGE_MAX)
            if events is None:
                place = None
                continue
            if not events:
                if bookmarks and self._clock.monotonic() - last_sent >= BOOKMARK_SECONDS:
                    version = max(version, pack_list(self._cache.registry.revision))
                    last_sent = self._clock.monotonic()
                    yield _bookmark(version)
                await _wait(changed)
                continue
            response, read = self._respond(kind, wanted, events)
            place += read
            version = events[read - 1].version
            if response.events:
                last_sent = self._clock.monotonic()
                yield response

    @staticmethod
    def _respond(kind: Kind, wanted: ObjectFilter, events: list[LogEvent]) -> tuple[WatchResponse, int]:
        """A message of at most BYTES_A_MESSAGE_MAX or so, and how many of the events went into it or past it."""
        response = WatchResponse()
        size = 0
        for at, event in enumerate(events):
            if wanted.namespace and event.namespace != wanted.namespace:
                continue
            made = _event_for(kind, wanted, event)
            if made is not None:
                response.events.append(made)
                size += len(made.value)
                if size > BYTES_A_MESSAGE_MAX:
                    return response, at + 1
        return response, len(events)


async def _wait(changed: asyncio.Event) -> None:
    """Until something changed, or it is time for a bookmark."""
    try:
        async with asyncio.timeout(BOOKMARK_SECONDS):
            await changed.wait()
    except TimeoutError:
        return


def _event_for(kind: Kind, wanted: ObjectFilter, event: LogEvent) -> WatchEvent | None:
    """The event as a watcher with this filter sees it: what leaves the selector is deleted, what enters it added."""
    before, after = bool(event.before), bool(event.value)
    if wanted.needs_attributes:
        before = before and wanted.matches(_memo(kind, event, "before"))
        after = after and wanted.matches(_memo(kind, event, "value"))
    if not before and not after:
        return None
    kind_of_event = ADDED if not before else MODIFIED if after else DELETED
    value = event.value if after else event.before
    return WatchEvent(type=kind_of_event, value=value, resource_version=str(event.version))


def _memo(kind: Kind, event: LogEvent, which: str) -> Attributes:
    known = event.memo.get(which)
    if known is None:
        known = event.memo[which] = attributes_of(kind, event.value if which == "value" else event.before)
    assert isinstance(known, Attributes)
    return known


def _expired(version: int, log: EventLog) -> WatchResponse:
    error = Expired(f"too old resource version: {version} ({log.start_version})")
    response = WatchResponse()
    response.events.add(type=ERROR, status=status_of(error))
    return response


def _bookmark(version: int) -> WatchResponse:
    response = WatchResponse()
    response.events.add(type=BOOKMARK, resource_version=str(version))
    return response
