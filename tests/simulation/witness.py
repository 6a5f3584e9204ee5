"""A client that watches all pods with the product's informer, and is held against the store's own history.

Between two lists every event must be the next one of the history: none missing, none twice, none out of order. At the
end the cache is what the store has.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable

from apiserver.core.versions import revision_of
from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import ApiClient
from services.client.informer import Informer
from services.model.clock import Clock
from services.model.errors import ApiError
from services.wire.metadata import object_key
from tests.simulation.invariants import Checker
from tests.simulation.loop import Owner
from tests.simulation.story import Violation

PODS = b"/orrery/registry/core/pods/"
END_OF_TIME = 1 << 62


class PodWitness:
    """One life of the watching client."""

    def __init__(
        self, api: ApiClient, clock: Clock, owner: Owner, checker: Checker, report: Callable[[Violation], None]
    ) -> None:
        self._checker = checker
        self._report = report
        self._next = -1
        self._lists = 0
        self.informer: Informer[str] = Informer(
            api, clock, "pods", lambda _value, version: version, self._on_event, rng=owner.rng, on_batch=self._on_batch
        )

        self.bound: Informer[str] = Informer(
            api,
            clock,
            "pods",
            lambda _value, version: version,
            lambda _key, _old, _new: None,
            rng=owner.rng,
            field_selector="spec.nodeName!=",
        )
        self._api = api
        self._clock = clock
        self._rng = owner.rng

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.informer.run())
            tasks.create_task(self.bound.run())
            tasks.create_task(self._read())

    async def _read(self) -> None:
        """Lists in small pages and gets: each is the store at one version, and not before the call began."""
        while True:
            await self._clock.sleep(self._rng.uniform(0.1, 2.0))
            since = self._checker.revision
            selector = self._rng.choice(("", "", "spec.nodeName!="))
            try:
                items, version = await self._api.list(
                    "pods", field_selector=selector, page_size=self._rng.randint(2, 9)
                )
            except ApiError:
                continue
            self._checker.checks["read"] += 1
            if revision_of(int(version)) < since:
                message = f"a list begun at revision {since} is of {revision_of(int(version))}"
                self._report(Violation("4", message))
            stored = self._stored(int(version), bound=bool(selector))
            listed = {object_key(item.value): item.resource_version for item in items}
            if listed != stored or len(items) != len(stored):
                message = f"a list at {version} differs from the store: {_differences(listed, stored)}"
                self._report(Violation("6", message))

    def _stored(self, version: int, *, bound: bool) -> dict[str, str]:
        return {
            key.decode().split("/", 5)[5]: str(item.version)
            for key, item in self._checker.at(PODS, version).items()
            if not bound or Pod.FromString(item.value).spec.node_name
        }

    def _on_event(self, key: str, _old: str | None, new: str | None) -> None:
        if self.informer.relists != self._lists:
            return  # the difference that a list made
        history = self._checker.pod_versions
        self._checker.checks["6"] += 1
        expected = history[self._next] if self._next < len(history) else (0, "nothing", False)
        version, path, deleted = expected
        if (path, deleted) != (key, new is None) or (new is not None and int(new) != version):
            got = f"{key} {'deleted' if new is None else f'at {new}'}"
            message = f"the watcher got {got}, the next in the store is {expected}"
            self._report(Violation("6", message, (key, path)))
        self._next += 1

    def _on_batch(self) -> None:
        if self.informer.relists != self._lists:
            self._lists = self.informer.relists
            version = int(self.informer.resource_version)
            self._next = bisect_right(self._checker.pod_versions, version, key=lambda item: item[0])

    def difference(self) -> str:
        """How the cache differs from the store; empty when it does not."""
        self._checker.checks["6"] += 1
        for name, informer in (("all pods", self.informer), ("bound pods", self.bound)):
            stored = self._stored(END_OF_TIME, bound=informer is self.bound)
            if stored != informer.cache:
                return f"{name}: {_differences(informer.cache, stored)}"
        return ""


def _differences(seen: dict[str, str], stored: dict[str, str]) -> str:
    wrong = sorted(key for key in {**stored, **seen} if stored.get(key) != seen.get(key))
    return "; ".join(f"{key}: {seen.get(key)}, stored {stored.get(key)}" for key in wrong[:5])
