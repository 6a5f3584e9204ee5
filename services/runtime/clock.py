"""The real clock."""

import asyncio
import time


class RealClock:
    """The machine's own time, as `services.model.clock.Clock` wants it."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
