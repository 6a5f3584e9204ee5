"""Jittered exponential backoff, bounded; the one kind of retry delay that clients use."""

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """`next_seconds` doubles from `first_seconds` to `seconds_max` and spreads each delay over its upper half."""

    rng: random.Random
    first_seconds: float = 0.05
    seconds_max: float = 2.0
    _attempts: int = 0

    def next_seconds(self) -> float:
        delay = min(self.seconds_max, self.first_seconds * 2.0 ** min(self._attempts, 32))
        self._attempts += 1
        return delay * (0.5 + self.rng.random() / 2)

    def reset(self) -> None:
        self._attempts = 0
