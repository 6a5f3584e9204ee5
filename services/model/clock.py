"""The seam to time. Cores take `now` as an argument; shells take a `Clock`; only a `__main__` makes a real one."""

from typing import Protocol


class Clock(Protocol):
    """Two readings and a wait. A simulation fills this with virtual time, and may skew the wall clock."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back. For timeouts, leases, durations."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may jump. For timestamps that people read, never for decisions."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns after at least `seconds` of monotonic time."""
        ...
