"""Lanes: for each node, one change to its ledger at a time from this server, and those who wait together go together.

Two writers of one ledger key would only make each other lose. So binds to a node (and, in lanes of their own, releases
from it) queue up here; whoever waits while a transaction is in flight is folded into the next.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

FOLD_MAX = 64
I = TypeVar("I")  # noqa: E741 - an item


class TaskOwner:
    """Owns tasks that outlive the call that began them; `close` ends them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug: it must not pass in silence, and the loop's handler is where such things are told.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "lane failed", "exception": error, "task": task}
            )

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Lanes(Generic[I]):
    """`work(key, items)` is called for one key never twice at a time, with 1 to FOLD_MAX items in order of arrival."""

    def __init__(self, owner: TaskOwner, work: Callable[[str, list[I]], Awaitable[None]]) -> None:
        self._owner = owner
        self._work = work
        self._waiting: dict[str, list[I]] = {}

    def add(self, key: str, item: I) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(item)
            return
        self._waiting[key] = [item]
        self._owner.start(self._drain(key))

    def put_back(self, key: str, items: list[I]) -> None:
        """From within `work`: these go first in the next round."""
        self._waiting[key][:0] = items

    async def _drain(self, key: str) -> None:
        try:
            while waiting := self._waiting[key]:
                items = waiting[:FOLD_MAX]
                del waiting[:FOLD_MAX]
                await self._work(key, items)
        finally:
            del self._waiting[key]
