"""Which of a machine's devices belong together: the exact choice of the best set of devices for a request.

A pair of devices is worth, in this order, its NVLinks, its PCIe path (PIX > PXB > PHB > NODE > SYS) and a common NUMA
node; packed into one integer, sums over pairs compare in that order. A set is compared by the sum of its links, then
its weakest pair (one missing link costs a collective all of its speed), then paths and NUMA. Among equal sets that one
is taken which leaves the best remainder: the best division of what is left into pairs, then all its pairs together.

Devices that no table tells apart ("twins": the same links, paths and NUMA ties towards every third device) are
interchangeable, so only the number taken of each class of twins is searched: 25 states for an NVSwitch machine of eight
instead of 256. The members themselves are then taken as a buddy allocator does, so that aligned pairs and fours stay
whole; those are also the sets that an NVSwitch may give to separate tenants. The search is exact up to
EXACT_DEVICES_MAX free devices and greedy beyond.
"""

from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

EXACT_DEVICES_MAX = 16
CHOICES_MAX = 4096
FABRICS_MAX = 256
# Nearest first, in the words of `nvidia-smi topo -m`; a path that was not reported ranks below all.
PATH_RANK = {"PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}
_LINK_SHIFT = 32
_PATH_SHIFT = 16
_BELOW_LINKS = (1 << _LINK_SHIFT) - 1
_NO_PAIR = 1 << 30

LinkTable = tuple[tuple[int, ...], ...]
PathTable = tuple[tuple[str, ...], ...]


class SetQuality(NamedTuple):
    """How well a set of devices hangs together; larger is better, compared field by field."""

    links: int
    links_min: int
    paths: int
    same_numa: int


def bits(mask: int) -> Iterator[int]:
    """The positions of the ones, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mutual_links(nvlinks: LinkTable, a: int, b: int) -> int:
    """NVLinks between two devices; a link that only one side reports is none (k8s-device-plugin#448)."""
    return min(_entry(nvlinks, a, b), _entry(nvlinks, b, a))


def one_sided_links(nvlinks: LinkTable) -> list[tuple[int, int]]:
    """The pairs whose two sides report different link counts."""
    count = len(nvlinks)
    return [(a, b) for a in range(count) for b in range(a + 1, count) if _entry(nvlinks, a, b) != _entry(nvlinks, b, a)]


def _entry(table: LinkTable, row: int, column: int) -> int:
    return max(0, table[row][column]) if row < len(table) and column < len(table[row]) else 0


def _path_rank(paths: PathTable, a: int, b: int) -> int:
    """The worse of what the two sides report."""
    ranks = [
        PATH_RANK.get(paths[row][column], 0) if row < len(paths) and column < len(paths[row]) else 0
        for row, column in ((a, b), (b, a))
    ]
    return min(ranks)


@lru_cache(maxsize=FABRICS_MAX)
def fabric_of(nvlinks: LinkTable, paths: PathTable, numa_nodes: tuple[int, ...]) -> "Fabric":
    """The fabric of a machine; machines of one shape share it, and so its memo."""
    return Fabric(nvlinks, paths, numa_nodes)


class Fabric:
    """Pair values of one machine and the memo of choices made on it. Sets of devices are bit masks."""

    def __init__(self, nvlinks: LinkTable, paths: PathTable, numa_nodes: tuple[int, ...]) -> None:
        self.size = len(numa_nodes)
        every = range(self.size)
        self._links = [[mutual_links(nvlinks, a, b) if a != b else 0 for b in every] for a in every]
        self._pairs = [
            [
                (self._links[a][b] << _LINK_SHIFT)
                + (_path_rank(paths, a, b) << _PATH_SHIFT)
                + (numa_nodes[a] == numa_nodes[b] and numa_nodes[a] >= 0)
                if a != b
                else 0
                for b in every
            ]
            for a in every
        ]
        self._classes = self._twin_classes()
        self._class_of = {member: index for index, members in enumerate(self._classes) for member in members}
        self._sums: dict[int, tuple[int, int]] = {0: (0, _NO_PAIR)}
        self._pairings: dict[int, int] = {0: 0}
        self._choices: OrderedDict[tuple[int, int], tuple[int, ...]] = OrderedDict()

    def quality(self, mask: int) -> SetQuality:
        """The quality of a set; a set of one has no pair and is equal to any other of one."""
        total, links_min = self._sum(mask)
        below = total & _BELOW_LINKS
        weakest = 0 if links_min == _NO_PAIR else links_min
        return SetQuality(total >> _LINK_SHIFT, weakest, below >> _PATH_SHIFT, below & ((1 << _PATH_SHIFT) - 1))

    def choose(self, free: int, count: int) -> int:
        """The best set of `count` out of the devices of `free`; 0 when there are fewer or none is asked for."""
        available = free.bit_count()
        if count < 1 or available < count:
            return 0
        if available == count:
            return free
        if available > EXACT_DEVICES_MAX:
            return self._choose_greedily(free, count)
        return self._members(free, self._choice(free, count))

    def _choice(self, free: int, count: int) -> tuple[int, ...]:
        """How many to take of each class, from the memo where it is known."""
        key = (self._canonical(free), count)
        taken = self._choices.get(key)
        if taken is None:
            taken = self._search(key[0], count)
            self._choices[key] = taken
            if len(self._choices) > CHOICES_MAX:
                self._choices.popitem(last=False)
        else:
            self._choices.move_to_end(key)
        return taken

    def _search(self, canonical: int, count: int) -> tuple[int, ...]:
        counts = self._counts(canonical)
        best: tuple[int, ...] = ()
        best_set: tuple[int, int, int] | None = None
        best_left: tuple[int, int] | None = None
        for taken in _vectors(counts, count):
            total, links_min = self._sum(self._mask(taken))
            value = (total >> _LINK_SHIFT, links_min, total & _BELOW_LINKS)
            if best_set is not None and value < best_set:
                continue
            left_mask = self._mask(tuple(had - took for had, took in zip(counts, taken, strict=True)))
            left = (self._pairing(left_mask), self._sum(left_mask)[0])
            if best_set is None or best_left is None or (value, left) > (best_set, best_left):
                best, best_set, best_left = taken, value, left
        return best

    def _choose_greedily(self, free: int, count: int) -> int:
        """Grows a set from every device and keeps the best one grown."""
        best, best_value = 0, SetQuality(-1, -1, -1, -1)
        for first in bits(free):
            grown = 1 << first
            while grown.bit_count() < count:
                gains = {
                    device: sum(self._pairs[device][member] for member in bits(grown)) for device in bits(free & ~grown)
                }
                grown |= 1 << max(gains, key=lambda device: (gains[device], -device))
            value = self._quality_of_many(grown)
            if value > best_value:
                best, best_value = grown, value
        return best

    def _quality_of_many(self, mask: int) -> SetQuality:
        """As `quality`, without the memo, which is bounded only for small machines."""
        members = list(bits(mask))
        pairs = [(a, b) for index, a in enumerate(members) for b in members[index + 1 :]]
        total = sum(self._pairs[a][b] for a, b in pairs)
        below = total & _BELOW_LINKS
        return SetQuality(
            total >> _LINK_SHIFT,
            min((self._links[a][b] for a, b in pairs), default=0),
            below >> _PATH_SHIFT,
            below & ((1 << _PATH_SHIFT) - 1),
        )

    def _sum(self, mask: int) -> tuple[int, int]:
        """(sum of pair values, fewest links of a pair) of a set; at most 2^16 sets are remembered."""
        known = self._sums.get(mask)
        if known is None:
            low = (mask & -mask).bit_length() - 1
            rest = mask & (mask - 1)
            total, links_min = self._sum(rest)
            pairs, links = self._pairs[low], self._links[low]
            for other in bits(rest):
                total += pairs[other]
                links_min = min(links_min, links[other])
            known = (total, links_min)
            if self.size <= EXACT_DEVICES_MAX:
                self._sums[mask] = known
        return known

    def _pairing(self, mask: int) -> int:
        """The greatest sum over divisions of a canonical set into pairs, with one left over where it is odd."""
        known = self._pairings.get(mask)
        if known is None:
            low = (mask & -mask).bit_length() - 1
            rest = mask & (mask - 1)
            known = self._pairing(self._canonical(rest)) if mask.bit_count() % 2 else 0
            for members in self._classes:
                partner = next((member for member in members if rest >> member & 1), None)
                if partner is not None:
                    left = self._canonical(rest & ~(1 << partner))
                    known = max(known, self._pairs[low][partner] + self._pairing(left))
            if self.size <= EXACT_DEVICES_MAX:
                self._pairings[mask] = known
        return known

    def _twin_classes(self) -> list[list[int]]:
        """Being twins is transitive, so comparing with the first member of a class is enough."""
        classes: list[list[int]] = []
        for device in range(self.size):
            for members in classes:
                first = members[0]
                if all(
                    self._pairs[first][other] == self._pairs[device][other]
                    for other in range(self.size)
                    if other not in (first, device)
                ):
                    members.append(device)
                    break
            else:
                classes.append([device])
        return classes

    def _counts(self, mask: int) -> tuple[int, ...]:
        return tuple(sum(mask >> member & 1 for member in members) for members in self._classes)

    def _mask(self, counts: tuple[int, ...]) -> int:
        """The canonical set with so many members of each class: the first ones."""
        mask = 0
        for members, count in zip(self._classes, counts, strict=True):
            for member in members[:count]:
                mask |= 1 << member
        return mask

    def _canonical(self, mask: int) -> int:
        return self._mask(self._counts(mask))

    def _members(self, free: int, taken: tuple[int, ...]) -> int:
        mask = 0
        for members, count in zip(self._classes, taken, strict=True):
            mask |= _take_buddies(free, [member for member in members if free >> member & 1], count)
        return mask


def _vectors(counts: tuple[int, ...], total: int) -> Iterator[tuple[int, ...]]:
    """All ways to take `total` with at most `counts[i]` of class i; the most of the first class first."""
    if not counts:
        if total == 0:
            yield ()
        return
    rest = sum(counts[1:])
    for taken in range(min(counts[0], total), max(0, total - rest) - 1, -1):
        for tail in _vectors(counts[1:], total - taken):
            yield (taken, *tail)


def _take_buddies(free: int, members: list[int], count: int) -> int:
    """Takes `count` of `members`: out of the smallest aligned free block that holds them, else whole blocks, largest first."""
    mask = 0
    left = list(members)
    while count:
        blocks = _free_blocks(free & ~mask, left)
        holding = [block for block in blocks if len(block) >= count]
        block = min(holding, key=len) if holding else max(blocks, key=len)
        for member in block[:count]:
            mask |= 1 << member
            left.remove(member)
        count -= min(count, len(block))
    return mask


def _free_blocks(free: int, members: list[int]) -> list[list[int]]:
    """`members` by the largest aligned block (1, 2, 4, 8 ...) around them that is wholly free; in order of index."""
    blocks: dict[tuple[int, int], list[int]] = {}
    for member in members:
        size = 1
        while True:
            start = member // (2 * size) * (2 * size)
            wider = ((1 << (2 * size)) - 1) << start
            if free & wider != wider:
                break
            size *= 2
        blocks.setdefault((member // size * size, size), []).append(member)
    return list(blocks.values())
