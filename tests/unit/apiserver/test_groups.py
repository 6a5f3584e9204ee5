"""Groups of changes: disjoint, within their limits, in order, and nobody waits for ever."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apiserver.core import groups
from apiserver.core.groups import Change, RegistryPut, place, take_group
from apiserver.core.header import decode
from apiserver.store.protocol import Compare, Delete, Put, Relation, Target

KEYS = [f"/orrery/registry/core/pods/default/{name}".encode() for name in "abcd"] + [b"/orrery/ledger/n/taken"]
WRITE_ID = b"x" * 16


def compare(key: bytes) -> Compare:
    return Compare(key, Target.MOD_REVISION, Relation.EQUAL, 1)


def change(writes: tuple[bytes, ...], compares: tuple[bytes, ...] = (), size: int = 1) -> Change:
    made = tuple(RegistryPut(key, b"v" * size) if b"registry" in key else Put(key, b"v" * size) for key in writes)
    return Change(tuple(compare(key) for key in compares), made, (), WRITE_ID)


A, B, C, D, LEDGER = KEYS


@pytest.mark.parametrize(
    ("waiting", "taken"),
    [
        ([change((A,)), change((B,))], [0, 1]),
        # Two that write one key, or one that compares what another writes, either way round.
        ([change((A,)), change((A,)), change((B,))], [0, 2]),
        ([change((A,)), change((B,), (A,))], [0]),
        ([change((A,), (B,)), change((B,))], [0]),
        # Comparing the same key is no conflict: nobody writes it.
        ([change((A,), (LEDGER,)), change((B,), (LEDGER,))], [0, 1]),
        # A later one may not overtake what stays behind on the same keys, but passes it on others.
        ([change((A,)), change((A, B)), change((B,)), change((C,))], [0, 3]),
        ([change((A,)), change((A,), (B,)), change((B,)), change((C,), (B,)), change((D,))], [0, 4]),
    ],
)
def test_a_group_takes_what_is_disjoint(waiting: list[Change], taken: list[int]) -> None:
    left = deque(waiting)
    group = take_group(left)
    assert group == [waiting[at] for at in taken]
    assert list(left) == [item for at, item in enumerate(waiting) if at not in taken], "the others keep their order"


_CHANGES = st.builds(
    change,
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True).map(tuple),
    st.lists(st.sampled_from(KEYS), max_size=3, unique=True).map(tuple),
)


@given(st.lists(_CHANGES, max_size=30))
def test_groups_are_disjoint_keep_order_on_each_key_and_end(waiting: list[Change]) -> None:
    left = deque(waiting)
    numbers = {id(item): number for number, item in enumerate(waiting)}
    order: list[Change] = []
    while left:
        first = left[0]
        group = take_group(left)
        assert group[0] is first, "who waits longest goes next"
        for at, one in enumerate(group):
            for other in group[at + 1 :]:
                assert one.written_keys().isdisjoint(other.touched_keys())
                assert other.written_keys().isdisjoint(one.touched_keys())
        order += group
    assert sorted(numbers[id(item)] for item in order) == list(range(len(waiting))), "each once"
    for at, later in enumerate(order):
        for earlier in order[at + 1 :]:
            if numbers[id(earlier)] < numbers[id(later)]:
                assert later.written_keys().isdisjoint(earlier.touched_keys())
                assert earlier.written_keys().isdisjoint(later.touched_keys())


@pytest.mark.parametrize(
    ("limit", "value", "waiting", "taken"),
    [
        ("GROUP_CHANGES_MAX", 2, [change((key,)) for key in KEYS[:4]], 2),
        ("GROUP_BYTES_MAX", 200, [change((key,), size=100) for key in KEYS[:4]], 1),
        ("GROUP_OPERATIONS_MAX", 5, [change((key,)) for key in KEYS[:4]], 2),
        ("REGISTRY_WRITES_MAX", 3, [change((key,)) for key in KEYS[:4]], 3),
        # One that is beyond a limit by itself goes alone: the store says what it thinks of it.
        ("GROUP_BYTES_MAX", 10, [change((A,), size=100), change((B,))], 1),
    ],
)
def test_limits_are_held(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, waiting: list[Change], taken: int
) -> None:
    monkeypatch.setattr(groups, limit, value)
    left = deque(waiting)
    assert len(take_group(left)) == taken
    assert len(left) == len(waiting) - taken


def test_each_registry_write_has_its_index_in_the_whole_group() -> None:
    deletion = Change((), (Delete(C), Put(LEDGER, b"x")), (), WRITE_ID)
    first, second, third = place([change((A, LEDGER)), deletion, change((B, D))])
    assert (first.indexes, second.indexes, third.indexes) == ((0,), (1,), (2, 3))
    puts = [write for plan in (first, third) for write in plan.member.writes if isinstance(write, Put)]
    indexes = [decode(write.value).index for write in puts if write.key.startswith(b"/orrery/registry/")]
    assert indexes == [0, 2, 3]
