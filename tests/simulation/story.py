"""What happened, in order: the events of a run with their times and names.

The hash over all of them is what two runs of one seed are compared by. A violation picks from them what concerns its
subjects, and the faults around it, so that a reader gets the shortest useful story instead of a log.
"""

import hashlib
from collections import deque
from dataclasses import dataclass

EVENTS_KEPT_MAX = 60_000
LINES_MAX = 40
FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Line:
    at_seconds: float
    actor: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_seconds:10.4f}  {self.actor:<13} {self.text}"


class Violation(Exception):
    """An invariant does not hold. `subjects`: words (pod keys, uids, nodes) by which its story is told."""

    def __init__(self, invariant: str, message: str, subjects: tuple[str, ...] = ()) -> None:
        super().__init__(f"invariant {invariant}: {message}")
        self.invariant = invariant
        self.subjects = subjects


class Story:
    """Bounded memory of the last EVENTS_KEPT_MAX events; the hash is over all."""

    def __init__(self) -> None:
        self.events = 0
        self._lines: deque[Line] = deque(maxlen=EVENTS_KEPT_MAX)
        self._hash = hashlib.blake2b(digest_size=16)

    def tell(self, at_seconds: float, actor: str, text: str) -> None:
        self.events += 1
        self._lines.append(Line(at_seconds, actor, text))
        self._hash.update(f"{at_seconds!r} {actor} {text}\n".encode())

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def about(self, subjects: tuple[str, ...]) -> list[str]:
        """The lines that name one of `subjects` and the faults since shortly before the first of them."""
        named = [line for line in self._lines if any(subject in line.text for subject in subjects)]
        if not named:
            return [str(line) for line in list(self._lines)[-LINES_MAX:]]
        if len(named) > LINES_MAX:
            named = [*named[: LINES_MAX // 4], *named[-3 * LINES_MAX // 4 :]]
        since = named[len(named) // 2].at_seconds - 5.0
        faults = [line for line in self._lines if line.actor == FAULT and line.at_seconds >= since][-LINES_MAX // 2 :]
        told = {id(line): line for line in [*named, *faults]}
        return [str(line) for line in self._lines if id(line) in told]
