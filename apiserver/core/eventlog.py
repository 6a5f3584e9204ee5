"""The last changes of one resource, in order: what watches read from.

Watchers hold no queue. Each has a place in the log and reads on from it, so a slow one costs nothing until its place has
left the window; then it is told to list again. The window is bounded in events and in bytes.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

EVENTS_MAX = 50_000
BYTES_MAX = 64 * 1024 * 1024


@dataclass(slots=True)
class LogEvent:
    """One change. `value` is the object after it (empty for a deletion), `before` the object before it (empty for none).

    `memo` holds what readers computed about the two values, so that many watchers compute it once.
    """

    version: int
    path: str
    namespace: str
    value: bytes
    before: bytes
    memo: dict[str, object] = field(default_factory=dict)

    @property
    def deleted(self) -> bool:
        return not self.value


class EventLog:
    """`start_version`: everything after it is in the log; a watch from before it has expired."""

    def __init__(self, start_version: int) -> None:
        self.start_version = start_version
        self._events: list[LogEvent] = []
        self._base = 0
        self._bytes = 0

    @property
    def end(self) -> int:
        """The place after the last event."""
        return self._base + len(self._events)

    def append(self, event: LogEvent) -> None:
        assert not self._events or event.version > self._events[-1].version, "events come in order of version"
        self._events.append(event)
        self._bytes += len(event.value) + len(event.before)
        if len(self._events) > EVENTS_MAX or self._bytes > BYTES_MAX:
            self._trim(len(self._events) // 4 or 1)

    def expire_through(self, version: int) -> None:
        """Forgets everything up to `version`."""
        self._trim(bisect_right(self._events, version, key=lambda event: event.version))
        self.start_version = max(self.start_version, version)

    def _trim(self, count: int) -> None:
        if count == 0:
            return
        gone = self._events[:count]
        del self._events[:count]
        self._base += count
        self._bytes -= sum(len(event.value) + len(event.before) for event in gone)
        self.start_version = max(self.start_version, gone[-1].version)

    def place_after(self, version: int) -> int | None:
        """Where a watch after `version` begins; None when that has left the window."""
        if version < self.start_version:
            return None
        return self._base + bisect_right(self._events, version, key=lambda event: event.version)

    def read(self, place: int, count: int) -> list[LogEvent] | None:
        """At most `count` events from `place` on; None when `place` has left the window."""
        if place < self._base:
            return None
        return self._events[place - self._base : place - self._base + count]
