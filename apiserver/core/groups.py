"""Changes, and the planning of groups of them.

A `Change` is one caller's writes with the comparisons that must hold. Changes that wait together ride in one
transaction, as nested members. All comparisons of a group see the state before it, so a group is only right when its
members are disjoint: no member writes a key that another writes or compares. What cannot ride now waits, and keeps its
place before later changes that touch the same keys.
"""

from collections import deque
from dataclasses import dataclass

from apiserver.core import header
from apiserver.core.keys import REGISTRY
from apiserver.core.versions import REGISTRY_WRITES_MAX, pack
from apiserver.store.protocol import Compare, Delete, Member, Put, Write

# One Raft entry stays well below etcd's request limit as the lab sets it, and below what stalls a follower.
GROUP_CHANGES_MAX = 512
GROUP_OPERATIONS_MAX = 4_096
GROUP_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RegistryPut:
    """An object's bytes; its header is made when the change gets its place in a group."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Change:
    """`writes` happen together if all `compares` hold; else `reads` are answered. `write_id`: 16 unique bytes."""

    compares: tuple[Compare, ...]
    writes: tuple[RegistryPut | Put | Delete, ...]
    reads: tuple[bytes, ...]
    write_id: bytes

    def written_keys(self) -> frozenset[bytes]:
        return frozenset(write.key for write in self.writes)

    def touched_keys(self) -> frozenset[bytes]:
        return self.written_keys() | {compare.key for compare in self.compares}

    def cost_bytes(self) -> int:
        return sum(len(write.key) + len(getattr(write, "value", b"")) for write in self.writes) + 64 * len(
            self.compares
        )

    def operations(self) -> int:
        return 1 + len(self.compares) + max(len(self.writes), len(self.reads))


@dataclass(frozen=True, slots=True)
class Planned:
    """A change as a member of its group. `indexes` are the registry writes' indexes, in the order of `writes`."""

    member: Member
    indexes: tuple[int, ...]


def place(changes: list[Change]) -> list[Planned]:
    """The members of a group, with every registry write's index in its header."""
    planned = []
    index = 0
    for change in changes:
        writes: list[Write] = []
        indexes = []
        for write in change.writes:
            if isinstance(write, RegistryPut):
                writes.append(Put(write.key, header.encode(index, change.write_id, write.value)))
            else:
                writes.append(write)
            if write.key.startswith(REGISTRY):
                indexes.append(index)
                index += 1
        planned.append(Planned(Member(change.compares, tuple(writes), change.reads), tuple(indexes)))
    return planned


def take_group(waiting: deque[Change]) -> list[Change]:
    """Takes the next group out of `waiting`: disjoint, within the limits, in order. Never empty unless `waiting` is."""
    group: list[Change] = []
    kept: list[Change] = []
    written: set[bytes] = set()
    touched: set[bytes] = set()
    # Keys of changes that stay behind: a later change that touches them must not overtake.
    held_written: set[bytes] = set()
    held_touched: set[bytes] = set()
    size = operations = registry_writes = 0
    while waiting:
        change = waiting.popleft()
        writes, touches = change.written_keys(), change.touched_keys()
        size += change.cost_bytes()
        operations += change.operations()
        registry_writes += sum(key.startswith(REGISTRY) for key in writes)
        full = group and (
            len(group) >= GROUP_CHANGES_MAX
            or size > GROUP_BYTES_MAX
            or operations > GROUP_OPERATIONS_MAX
            or registry_writes > REGISTRY_WRITES_MAX
        )
        if full:
            waiting.appendleft(change)
            break
        meets_group = not written.isdisjoint(touches) or not touched.isdisjoint(writes)
        meets_held = not held_written.isdisjoint(touches) or not held_touched.isdisjoint(writes)
        if meets_group or meets_held:
            kept.append(change)
            held_written |= writes
            held_touched |= touches
        else:
            group.append(change)
            written |= writes
            touched |= touches
    waiting.extendleft(reversed(kept))
    return group


def delete_versions(planned: list[Planned], succeeded: list[bool], revision: int) -> list[tuple[int, ...]]:
    """The version of each registry write of each member that happened, as every watcher computes them.

    A put has the index in its header. A delete has none, and takes the place after the registry write before it: when a
    member before it failed, that is lower than the planned index.
    """
    versions: list[tuple[int, ...]] = []
    last = -1
    for plan, happened in zip(planned, succeeded, strict=True):
        mine = []
        if happened:
            planned_indexes = iter(plan.indexes)
            for write in plan.member.writes:
                if not write.key.startswith(REGISTRY):
                    continue
                index = next(planned_indexes)
                last = index if isinstance(write, Put) else last + 1
                mine.append(pack(revision, last))
        versions.append(tuple(mine))
    return versions
