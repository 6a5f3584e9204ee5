"""A cache of one resource that stays equal to the API server's: list, then watch, then list again when it must.

The watch resumes after the last version seen. When that has expired, a new list is compared with the cache and the
differences, deletions among them, are delivered as if they had been watched; so whoever listens sees each object's
changes in order and ends equal to the server, however often the connection broke.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Generic, TypeVar

from protos.orrery.v1.api_pb2 import ADDED, BOOKMARK, DELETED, ERROR, MODIFIED, WatchEvent
from services.client.api import ApiClient, Stored
from services.client.backoff import Backoff
from services.model.clock import Clock
from services.model.errors import ApiError, Expired
from services.runtime.logging import Logger, silent
from services.runtime.status import error_of
from services.wire.metadata import object_key

T = TypeVar("T")
Decode = Callable[[bytes, str], T]
OnEvent = Callable[[str, T | None, T | None], None]


class Informer(Generic[T]):
    """`on_event(key, old, new)`: `old` None is an addition, `new` None a deletion; key is namespace/name or name.

    `cache` holds what `decode(value, resource_version)` made. `on_batch` is called after each delivery, so that a shell
    can work once for many events. `run` ends only by cancellation.
    """

    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        resource: str,
        decode: Decode[T],
        on_event: OnEvent[T],
        *,
        rng: random.Random,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        on_batch: Callable[[], None] | None = None,
        log: Logger | None = None,
    ) -> None:
        self.cache: dict[str, T] = {}
        self.synced = False
        self.resource_version = ""
        self.relists = 0
        self._api = api
        self._clock = clock
        self._resource = resource
        self._decode = decode
        self._on_event = on_event
        self._on_batch = on_batch
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._backoff = Backoff(rng)
        self._versions: dict[str, str] = {}
        self._first_list = asyncio.Event()
        self._log = log or silent()

    async def wait_synced(self) -> None:
        """Returns once the first list is in the cache."""
        await self._first_list.wait()

    async def run(self) -> None:
        while True:
            try:
                if not self.resource_version:
                    await self._list()
                await self._watch()
                self._backoff.reset()
            except Expired:
                self.resource_version = ""
            except ApiError as error:
                self._log.warning("informer_retries", resource=self._resource, reason=str(error))
            await self._clock.sleep(self._backoff.next_seconds())

    async def _list(self) -> None:
        items, version = await self._api.list(
            self._resource,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )
        self.relists += 1
        present = {object_key(item.value): item for item in items}
        for key in [key for key in self.cache if key not in present]:
            self._delete(key)
        for key, item in present.items():
            if self._versions.get(key) != item.resource_version:
                self._put(key, item)
        self.resource_version = version
        self.synced = True
        self._first_list.set()
        self._deliver()

    async def _watch(self) -> None:
        stream = self._api.watch(
            self._resource,
            self._namespace,
            resource_version=self.resource_version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )
        async for response in stream:
            for event in response.events:
                self._apply(event)
            self._backoff.reset()
            self._deliver()

    def _apply(self, event: WatchEvent) -> None:
        if event.type == ERROR:
            raise error_of(event.status)
        if event.type in (ADDED, MODIFIED):
            self._put(object_key(event.value), Stored(event.value, event.resource_version))
        elif event.type == DELETED:
            self._delete(object_key(event.value))
        else:
            assert event.type == BOOKMARK, f"unknown event type {event.type}"
        self.resource_version = event.resource_version

    def _put(self, key: str, item: Stored) -> None:
        old = self.cache.get(key)
        new = self._decode(item.value, item.resource_version)
        self.cache[key] = new
        self._versions[key] = item.resource_version
        self._on_event(key, old, new)

    def _delete(self, key: str) -> None:
        old = self.cache.pop(key, None)
        self._versions.pop(key, None)
        if old is not None:
            self._on_event(key, old, None)

    def _deliver(self) -> None:
        if self._on_batch is not None:
            self._on_batch()
