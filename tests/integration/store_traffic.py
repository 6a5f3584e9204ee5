"""What the tests of stores share: short ways to write, a collector of events, and a proxy that breaks connections."""

import asyncio

from apiserver.store.protocol import Compare, Member, Put, Relation, Store, StoreEvent, Target, WatchBatch

WAIT_SECONDS_MAX = 30


def absent(key: bytes) -> Compare:
    return Compare(key, Target.CREATE_REVISION, Relation.EQUAL, 0)


def unchanged(key: bytes, revision: int) -> Compare:
    return Compare(key, Target.MOD_REVISION, Relation.EQUAL, revision)


async def put(store: Store, key: bytes, value: bytes) -> int:
    return (await store.txn((Member((), (Put(key, value),)),))).revision


async def batches_until(store: Store, prefix: bytes, start: int, revision: int) -> list[WatchBatch]:
    """All batches from `start` on, until the watch has reached `revision`."""
    found = []
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async for batch in store.watch(prefix, start_revision=start):
            found.append(batch)
            if batch.revision >= revision:
                return found
    raise AssertionError("the watch ended")


async def events(store: Store, prefix: bytes, start: int, count: int) -> list[StoreEvent]:
    """The first `count` events from `start` on."""
    found: list[StoreEvent] = []
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async for batch in store.watch(prefix, start_revision=start):
            found.extend(batch.events)
            if len(found) >= count:
                return found
    raise AssertionError("the watch ended")


class Proxy:
    """Forwards TCP to `target` (host:port). `cut` breaks every connection that stands; `mute` swallows all answers."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: list[asyncio.StreamWriter] = []
        self.cuts = 0
        self.address = ""
        self.muted = False
        self.swallowed = asyncio.Event()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Refuses connections from now on."""
        self._server.close()
        await self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        self._writers += [writer, there_writer]
        await asyncio.gather(
            self._pump(reader, there_writer, answers=False), self._pump(there_reader, writer, answers=True)
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await reader.read(65536):
                if answers and self.muted:
                    self.swallowed.set()
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def cut(self) -> None:
        for writer in self._writers:
            if not writer.is_closing():
                self.cuts += 1
                writer.transport.abort()
        self._writers.clear()
