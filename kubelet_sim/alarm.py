"""Waiting on the seam to time: until someone rings, or so many seconds of the given clock."""

import asyncio

from services.model.clock import Clock


class Alarm:
    """One task waits; anyone rings. A ring while nobody waits is not lost."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Returns once rung, or after `seconds`."""
        if not self._rung.is_set():
            if seconds is None:
                await self._rung.wait()
            else:
                await self._race(seconds)
        self._rung.clear()

    async def _race(self, seconds: float) -> None:
        tasks = [asyncio.ensure_future(self._rung.wait()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
