"""What a `Store` promises, asked of both its fillings."""

import asyncio

import pytest

from apiserver.store.protocol import (
    Compare,
    Delete,
    Member,
    Put,
    Record,
    Relation,
    Store,
    StoreCompacted,
    StoreInvalid,
    StoreTooLarge,
    StoreUnavailable,
    Target,
    Write,
)
from tests.integration.store_traffic import absent, batches_until, events, put, unchanged


async def test_a_lost_comparison_writes_nothing_and_answers_what_is_there(store: Store) -> None:
    first = await put(store, b"/a", b"1")
    result = await store.txn((Member((unchanged(b"/a", first - 1),), (Put(b"/a", b"2"),), (b"/a", b"/none")),))
    (answer,) = result.results
    assert not answer.succeeded
    assert answer.records == (Record(b"/a", b"1", first, first), None)
    assert result.revision == first


async def test_members_of_a_group_succeed_alone_and_share_one_revision(store: Store) -> None:
    before = await put(store, b"/taken", b"x")
    result = await store.txn(
        (
            Member((absent(b"/a"),), (Put(b"/a", b"1"),)),
            Member((absent(b"/taken"),), (Put(b"/taken", b"y"),), (b"/taken",)),
            Member((absent(b"/b"),), (Put(b"/b", b"2"),)),
        )
    )
    assert [item.succeeded for item in result.results] == [True, False, True]
    a, b = await store.get(b"/a"), await store.get(b"/b")
    assert a is not None
    assert b is not None
    assert a.mod_revision == b.mod_revision == result.revision == before + 1


async def test_all_comparisons_of_a_group_see_the_state_before_it(store: Store) -> None:
    """The trap that the planner's rule of disjoint members exists for."""
    result = await store.txn(
        (Member((absent(b"/y"),), (Put(b"/x", b""),)), Member((absent(b"/x"),), (Put(b"/y", b""),)))
    )
    assert [item.succeeded for item in result.results] == [True, True]


@pytest.mark.parametrize(
    ("relation", "offset", "holds"),
    [
        (Relation.EQUAL, 0, True),
        (Relation.EQUAL, 1, False),
        (Relation.NOT_EQUAL, 0, False),
        (Relation.NOT_EQUAL, 1, True),
        (Relation.GREATER, -1, True),
        (Relation.GREATER, 0, False),
        (Relation.LESS, 1, True),
        (Relation.LESS, 0, False),
    ],
)
@pytest.mark.parametrize("target", list(Target))
async def test_each_relation_compares_the_keys_revision_with_the_given_one(
    store: Store, target: Target, relation: Relation, offset: int, holds: bool
) -> None:
    created = await put(store, b"/a", b"1")
    modified = await put(store, b"/a", b"2")
    revision = created if target is Target.CREATE_REVISION else modified
    result = await store.txn((Member((Compare(b"/a", target, relation, revision + offset),), ()),))
    assert result.results[0].succeeded is holds


@pytest.mark.parametrize(
    "writes",
    [
        ((Put(b"/a", b"1"), Put(b"/a", b"2")),),
        ((Put(b"/a", b"1"), Delete(b"/a")),),
        ((Put(b"/a", b"1"),), (Put(b"/a", b"2"),)),
        ((Delete(b"/a"),), (Put(b"/a", b"2"),)),
    ],
    ids=["two puts in a member", "put and delete in a member", "two puts in a group", "delete, then put in a group"],
)
async def test_a_group_that_writes_one_key_twice_is_refused_whole(
    store: Store, writes: tuple[tuple[Write, ...], ...]
) -> None:
    before = await store.revision()
    members = (*(Member((), each) for each in writes), Member((), (Put(b"/innocent", b""),)))
    with pytest.raises(StoreInvalid, match="duplicate key"):
        await store.txn(members)
    assert await store.revision() == before


async def test_a_put_before_a_delete_of_another_member_is_accepted_and_both_are_told(store: Store) -> None:
    """etcd's own hole, kept by the twin: a planner that relied on a refusal here would lose a write."""
    result = await store.txn((Member((), (Put(b"/a", b"1"),)), Member((), (Delete(b"/a"),))))
    assert [event.deleted for event in await events(store, b"/a", result.revision, 2)] == [False, True]
    assert await store.get(b"/a") is None


async def test_an_empty_key_is_refused(store: Store) -> None:
    with pytest.raises(StoreInvalid, match="key is not provided"):
        await store.txn((Member((), (Put(b"", b"1"),)),))


async def test_deleting_what_is_absent_takes_no_revision(store: Store) -> None:
    written = await put(store, b"/r", b"1")
    assert await store.revision() == written
    assert (await store.txn((Member((), (Delete(b"/nothing"),)),))).revision == written


async def test_deleting_and_creating_again_begins_a_new_life(store: Store) -> None:
    first = await put(store, b"/l", b"1")
    await store.txn((Member((), (Delete(b"/l"),)),))
    assert await store.get(b"/l") is None
    again = await put(store, b"/l", b"2")
    assert await store.get(b"/l") == Record(b"/l", b"2", again, again)
    assert await store.get(b"/l", revision=first) == Record(b"/l", b"1", first, first)


async def test_a_list_is_paged_at_one_revision(store: Store) -> None:
    for number in range(5):
        await put(store, b"/p/%d" % number, b"old")
    first = await store.list(b"/p/", limit=2)
    await put(store, b"/p/3", b"new")
    await put(store, b"/q", b"outside")
    second = await store.list(b"/p/", after=first.records[-1].key, limit=2, revision=first.revision)
    third = await store.list(b"/p/", after=second.records[-1].key, limit=2, revision=first.revision)
    listed = [record.key for page in (first, second, third) for record in page.records]
    assert listed == [b"/p/%d" % number for number in range(5)]
    assert [page.more for page in (first, second, third)] == [True, True, False]
    assert second.records[-1].value == b"old"
    assert {page.revision for page in (first, second, third)} == {first.revision}


async def test_a_list_without_limit_is_whole_however_long_it_is(store: Store) -> None:
    members = tuple(Member((), (Put(b"/n/%04d" % number, b""),)) for number in range(2500))
    await store.txn(members)
    page = await store.list(b"/n/")
    assert [record.key for record in page.records] == [b"/n/%04d" % number for number in range(2500)]
    assert not page.more
    limited = await store.list(b"/n/", limit=1500)
    assert (len(limited.records), limited.more) == (1500, True)


async def test_a_list_of_keys_only_has_revisions_but_no_values(store: Store) -> None:
    written = await put(store, b"/k/a", b"value")
    assert (await store.list(b"/k/", keys_only=True)).records == (Record(b"/k/a", b"", written, written),)


async def test_the_empty_prefix_is_everything(store: Store) -> None:
    await put(store, b"\xff\xff", b"last")
    await put(store, b"\x01", b"first")
    assert [record.key for record in (await store.list(b"")).records] == [b"\x01", b"\xff\xff"]
    assert [record.key for record in (await store.list(b"\xff")).records] == [b"\xff\xff"]


async def test_a_revision_of_the_future_cannot_be_read(store: Store) -> None:
    with pytest.raises(StoreInvalid, match="future"):
        await store.get(b"/a", revision=await store.revision() + 1)


async def test_a_watch_delivers_one_revision_in_the_order_of_the_group(store: Store) -> None:
    start = await put(store, b"/w/gone", b"x")
    await store.txn(
        (
            Member((), (Put(b"/w/2", b"a"), Put(b"/elsewhere", b"b"))),
            Member((), (Delete(b"/w/gone"), Put(b"/w/1", b"c"))),
        )
    )
    found = await events(store, b"/w/", start + 1, 3)
    told = [(event.deleted, event.record.key) for event in found]
    assert told == [(False, b"/w/2"), (True, b"/w/gone"), (False, b"/w/1")]
    assert {event.record.mod_revision for event in found} == {start + 1}
    assert found[1].record == Record(b"/w/gone", b"", 0, start + 1)


async def test_a_watch_begins_in_the_past_and_goes_on(store: Store) -> None:
    first = await put(store, b"/w/a", b"1")
    await put(store, b"/w/a", b"2")
    waiting = asyncio.create_task(events(store, b"/w/", first, 3))
    await put(store, b"/w/b", b"3")
    assert [event.record.value for event in await waiting] == [b"1", b"2", b"3"]


async def test_a_watch_that_begins_in_the_future_waits_for_it(store: Store) -> None:
    now = await put(store, b"/w/a", b"1")
    waiting = asyncio.create_task(events(store, b"/w/", now + 2, 1))
    await put(store, b"/w/a", b"2")
    await put(store, b"/w/a", b"3")
    assert [event.record.value for event in await waiting] == [b"3"]


async def test_writes_elsewhere_are_progress_so_a_watch_reaches_every_revision(store: Store) -> None:
    """The barrier: whoever has asked for the revision waits until the watch is there."""
    start = await put(store, b"/w/a", b"1")
    await put(store, b"/elsewhere", b"2")
    barrier = await store.revision()
    (batch, *more) = await batches_until(store, b"/w/", start + 1, barrier)
    assert (batch.events, batch.revision, more) == ((), barrier, [])


async def test_what_is_compacted_cannot_be_read_or_watched(store: Store) -> None:
    first = await put(store, b"/c/a", b"1")
    second = await put(store, b"/c/a", b"2")
    third = await put(store, b"/c/a", b"3")
    await store.compact(second)
    with pytest.raises(StoreCompacted) as read:
        await store.list(b"/c/", revision=first)
    assert read.value.compact_revision == second
    (record,) = (await store.list(b"/c/", revision=second)).records
    assert record.value == b"2"
    for start in (first, second):
        with pytest.raises(StoreCompacted) as watched:
            await events(store, b"/c/", start, 1)
        assert watched.value.compact_revision == second
    assert [event.record.mod_revision for event in await events(store, b"/c/", third, 1)] == [third]


async def test_compacting_again_is_harmless_and_compacting_the_future_is_refused(store: Store) -> None:
    first = await put(store, b"/c/a", b"1")
    await put(store, b"/c/a", b"2")
    await store.compact(first)
    await store.compact(first)
    await store.compact(first - 1)
    with pytest.raises(StoreInvalid, match="future"):
        await store.compact(first + 10)


async def test_a_watch_that_keeps_up_outlives_a_compaction(store: Store) -> None:
    start = await put(store, b"/c/a", b"1")
    watch = store.watch(b"/c/", start_revision=start)
    async with asyncio.timeout(10):
        assert (await anext(watch)).events[0].record.value == b"1"
        await put(store, b"/c/a", b"2")
        assert (await anext(watch)).events[0].record.value == b"2"
        now = await put(store, b"/c/a", b"3")
        await store.compact(now)
        assert (await anext(watch)).events[0].record.value == b"3"


@pytest.mark.parametrize("shape", ["outer", "inner", "comparisons"])
async def test_too_many_operations_are_refused(store: Store, shape: str) -> None:
    writes = tuple(Put(b"/many/%d" % number, b"") for number in range(8_193))
    compares = tuple(absent(b"/many/%d" % number) for number in range(8_193))
    members = {
        "outer": tuple(Member((), (write,)) for write in writes),
        # A group has room for what its number of members leaves over.
        "inner": (Member((), writes[:8_191]), Member((), ())),
        "comparisons": (Member(compares, ()),),
    }[shape]
    with pytest.raises(StoreTooLarge, match="too many operations"):
        await store.txn(members)


async def test_the_largest_group_passes(store: Store) -> None:
    writes = tuple(Put(b"/many/%d" % number, b"") for number in range(8_190))
    result = await store.txn((Member((), writes), Member((), ())))
    assert [item.succeeded for item in result.results] == [True, True]


async def test_too_many_bytes_are_refused(store: Store) -> None:
    value = b"x" * (11 * 1024 * 1024)
    with pytest.raises(StoreTooLarge):
        await store.txn(tuple(Member((), (Put(b"/big/%d" % number, value),)) for number in range(3)))


async def test_closing_ends_watches_and_refuses_calls(store: Store) -> None:
    start = await put(store, b"/a", b"1")
    watch = store.watch(b"/a", start_revision=start)
    async with asyncio.timeout(10):
        assert len((await anext(watch)).events) == 1
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await anext(watch)
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get(b"/a")
