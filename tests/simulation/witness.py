"""A client that watches all pods with the product's informer, and is held against the store's own history.

Between two lists every event must be the next one of the history: none missing, none twice, none out of order. At the
end the cache is what the store has.
"""

from bisect import bisect_right
from collections.abc import Callable

from services.client.api import ApiClient
from services.client.informer import Informer
from services.model.clock import Clock
from tests.simulation.invariants import Checker
from tests.simulation.loop import Owner
from tests.simulation.story import Violation


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

    async def run(self) -> None:
        await self.informer.run()

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
        stored = {
            key.decode().split("/", 5)[5]: str(item.version)
            for key, item in self._checker.current(b"/orrery/registry/core/pods/").items()
        }
        wrong = sorted(
            key for key in {**stored, **self.informer.cache} if stored.get(key) != self.informer.cache.get(key)
        )
        return "; ".join(f"{key}: {self.informer.cache.get(key)}, stored {stored.get(key)}" for key in wrong[:5])
