"""An informer's cache equals the server's state whatever breaks, and its listener sees each object's changes in order.

The server here is a history of writes with a window, as the real one's is: a watch from before the window is Expired. It
cuts streams at any event, refuses lists, sends bookmarks, and says that a version has expired in the stream or at once.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from protos.orrery.v1.api_pb2 import ADDED, BOOKMARK, DELETED, ERROR, MODIFIED, WatchEvent, WatchResponse
from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import Stored
from services.client.informer import Informer
from services.model.errors import Expired, OutcomeUnknown, Unavailable
from services.runtime.status import status_of

KEYS = [f"default/{name}" for name in "abcdef"]
WRITES = 120


def value(key: str, version: int) -> bytes:
    pod = Pod()
    pod.metadata.namespace, _, pod.metadata.name = key.partition("/")
    pod.metadata.labels["version"] = str(version)
    return pod.SerializeToString()


@dataclass
class Server:
    """`faults`: how likely a break is, at each place where one can be."""

    rng: random.Random
    faults: float
    version: int = 10
    window: int = 10
    state: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    log: list[tuple[int, int, str, bytes]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lists: int = 0

    def write(self) -> None:
        key = self.rng.choice(KEYS)
        self.version += self.rng.randint(1, 3)
        there = key in self.state
        if there and self.rng.random() < 0.3:
            old = self.state.pop(key)[1]
            self.log.append((self.version, DELETED, key, old))
        else:
            made = value(key, self.version)
            self.state[key] = (self.version, made)
            self.log.append((self.version, MODIFIED if there else ADDED, key, made))
        if self.rng.random() < self.faults / 4:
            self.window = self.version
        self.changed.set()

    def breaks(self) -> bool:
        return self.rng.random() < self.faults

    async def list(self, _resource: str, _namespace: str, **_selectors: str) -> tuple[list[Stored], str]:
        self.lists += 1
        await asyncio.sleep(0)
        if self.breaks():
            raise self.rng.choice((Unavailable("no server answers"), Expired("compacted between two pages")))
        return [Stored(made, str(version)) for version, made in self.state.values()], str(self.version)

    async def watch(
        self, _resource: str, _namespace: str, *, resource_version: str, **_selectors: str
    ) -> AsyncIterator[WatchResponse]:
        after = int(resource_version)
        while True:
            if after < self.window:
                error = Expired(f"version {after} has left the window")
                if self.rng.random() < 0.5:
                    raise error
                yield WatchResponse(events=[WatchEvent(type=ERROR, status=status_of(error))])
                return
            due = [item for item in self.log if item[0] > after][: self.rng.randint(1, 4)]
            if due:
                cut = self.rng.randint(0, len(due)) if self.breaks() else None
                events = [
                    WatchEvent(type=kind, value=made, resource_version=str(version))  # type: ignore[arg-type]
                    for version, kind, _, made in due[:cut]
                ]
                if events:
                    yield WatchResponse(events=events)
                if cut is not None:
                    raise OutcomeUnknown("the connection broke")
                after = due[-1][0]
            elif self.rng.random() < 0.2:
                # All up to here has been sent; a version that no object carries.
                after = self.version
                yield WatchResponse(events=[WatchEvent(type=BOOKMARK, resource_version=str(after))])
            else:
                self.changed.clear()
                await self.changed.wait()


class Listener:
    """Checks each call against what it was told before."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.calls = 0

    def on_event(self, key: str, old: int | None, new: int | None) -> None:
        self.calls += 1
        assert self.known.get(key) == old, "what was there before is what was told last"
        assert old is None or new is None or new > old, "no object goes back, and nothing is told twice"
        assert (old, new) != (None, None)
        if new is None:
            del self.known[key]
        else:
            self.known[key] = new


class Fast:
    """Time that passes at once, in its order."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ns(self) -> int:
        return 0

    async def sleep(self, _seconds: float) -> None:
        await asyncio.sleep(0)


def version_of(stored: bytes, _resource_version: str) -> int:
    return int(Pod.FromString(stored).metadata.labels["version"])


async def settle(informer: Informer[int], server: Server) -> None:
    """Until the informer has seen everything; it must get there."""
    for _ in range(20_000):
        if informer.synced and informer.cache == {key: version for key, (version, _) in server.state.items()}:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"the cache {informer.cache} never became {server.state}")


@pytest.mark.parametrize("faults", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("seed", range(12))
async def test_the_cache_equals_the_server_at_each_rest(seed: int, faults: float) -> None:
    rng = random.Random(f"{seed} {faults}")
    server, listener = Server(rng, faults), Listener()
    informer: Informer[int] = Informer(
        server,  # type: ignore[arg-type]
        Fast(),
        "pods",
        version_of,
        listener.on_event,
        rng=rng,
        namespace="default",
    )
    running = asyncio.create_task(informer.run())
    try:
        for number in range(WRITES):
            server.write()
            for _ in range(rng.randint(0, 3)):
                await asyncio.sleep(0)
            if number % 20 == 19:
                await settle(informer, server)
                assert listener.known == informer.cache, "who listens ends equal to the cache"
                assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    if not faults:
        assert server.lists == informer.relists == 1, "a watch that is whole needs no second list"
        assert listener.calls <= WRITES
    else:
        assert informer.relists > 1, "some version expired"
