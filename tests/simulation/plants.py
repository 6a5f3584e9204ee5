"""Faults of the product, planted from outside: twins that do what a careless change could make of it.

Each must be found within its number of seeds; the same seeds without it must be clean.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from apiserver.core.keys import EPOCHS, LEDGER
from apiserver.store.protocol import Compare, Delete, Member, Put, Store, StoreOutcomeUnknown, TxnResult
from tests.simulation.store import ObservedMvcc
from tests.simulation.world import Plants


class _ComparingLess(ObservedMvcc):
    """Forgets the comparisons that `keeps` does not keep."""

    def keeps(self, compare: Compare) -> bool:
        raise AssertionError("each twin says")

    def txn(self, members: tuple[Member, ...]) -> TxnResult:
        return super().txn(
            tuple(
                replace(member, compares=tuple(compare for compare in member.compares if self.keeps(compare)))
                for member in members
            )
        )


class NoEpochComparison(_ComparingLess):
    """Binds are not fenced in the transaction."""

    def keeps(self, compare: Compare) -> bool:
        return not compare.key.startswith(EPOCHS)


class NoLedgerComparison(_ComparingLess):
    """Binds of two API servers to one node overwrite each other's ledger."""

    def keeps(self, compare: Compare) -> bool:
        return not compare.key.startswith(LEDGER)


class NoLedgerRelease(ObservedMvcc):
    """What a pod gives back is not written."""

    def txn(self, members: tuple[Member, ...]) -> TxnResult:
        return super().txn(
            tuple(
                replace(member, writes=tuple(write for write in member.writes if self._keeps(write)))
                for member in members
            )
        )

    @staticmethod
    def _keeps(write: Put | Delete) -> bool:
        return not write.key.endswith(b"/returned")


class BlindRetry:
    """A store client that sends a transaction again when it does not know the outcome, and compares nothing then."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.get = store.get
        self.list = store.list
        self.revision = store.revision
        self.watch = store.watch
        self.compact = store.compact
        self.close = store.close

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        try:
            return await self._store.txn(members)
        except StoreOutcomeUnknown:
            return await self._store.txn(tuple(replace(member, compares=()) for member in members))


@dataclass(frozen=True, slots=True)
class Plant:
    """`seeds_max`: how many seeds it may take; `invariants`: by which of them it may be found."""

    make: Callable[[], Plants]
    invariants: tuple[str, ...]
    seeds_max: int


PLANTS: dict[str, Plant] = {
    "epoch-not-compared": Plant(lambda: Plants(mvcc=NoEpochComparison), ("5",), 12),
    "ledger-not-compared": Plant(lambda: Plants(mvcc=NoLedgerComparison), ("2",), 4),
    "release-not-written": Plant(lambda: Plants(mvcc=NoLedgerRelease), ("2",), 1),
    "unknown-retried-blindly": Plant(lambda: Plants(store=BlindRetry), ("1", "2", "4", "6"), 4),
}
