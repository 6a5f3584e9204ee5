"""The window of events: what a watch reads from its place, and when it has to list again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apiserver.core import eventlog
from apiserver.core.eventlog import EventLog, LogEvent


def event(version: int, size: int = 1) -> LogEvent:
    return LogEvent(version, f"default/{version}", "default", b"v" * size, b"")


def read_all(log: EventLog, after: int, count: int = 3) -> list[int] | None:
    """The versions that a watch after `after` gets, `count` at a time; None when it has expired."""
    place = log.place_after(after)
    if place is None:
        return None
    got: list[int] = []
    while True:
        events = log.read(place, count)
        assert events is not None
        if not events:
            return got
        got += [item.version for item in events]
        place += len(events)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=40),
    st.integers(0, 60),
    st.integers(1, 5),
)
def test_a_watch_gets_exactly_what_came_after_its_version(steps: list[int], after: int, count: int) -> None:
    log = EventLog(10)
    versions = []
    version = 10
    for step in steps:
        version += step
        versions.append(version)
        log.append(event(version))
    if after < 10:
        assert read_all(log, after, count) is None
    else:
        assert read_all(log, after, count) == [item for item in versions if item > after]


@pytest.mark.parametrize(("limit", "value"), [("EVENTS_MAX", 8), ("BYTES_MAX", 80)])
def test_beyond_a_bound_the_oldest_go_and_their_watches_expire(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(eventlog, limit, value)
    log = EventLog(0)
    slow = log.place_after(0)
    assert slow is not None
    for version in range(1, 101):
        log.append(event(version, size=10))
    assert log.read(slow, 10) is None, "its place has left the window"
    assert read_all(log, log.start_version - 1) is None
    assert read_all(log, log.start_version) == list(range(log.start_version + 1, 101))
    assert 100 - log.start_version <= 8


def test_a_watch_in_the_middle_of_a_revision_loses_nothing_of_it() -> None:
    """Versions of one transaction differ in their last twelve bits alone."""
    log = EventLog(0)
    revision = [(7 << 12) | index for index in range(5)]
    for version in revision:
        log.append(event(version))
    assert read_all(log, revision[1]) == revision[2:]
    assert read_all(log, (7 << 12) | 4095) == [], "a bookmark stands after all of its revision"


def test_what_is_compacted_expires_and_what_comes_later_does_not() -> None:
    log = EventLog(0)
    for version in (5, 6, 9):
        log.append(event(version))
    log.expire_through(6)
    assert [read_all(log, version) for version in (5, 6, 8, 9)] == [None, [9], [9], []]
    log.expire_through(20)
    assert read_all(log, 9) is None and read_all(log, 20) == []
    log.append(event(21))
    assert read_all(log, 20) == [21]


def test_events_out_of_order_are_our_own_fault() -> None:
    log = EventLog(0)
    log.append(event(5))
    with pytest.raises(AssertionError, match="in order"):
        log.append(event(5))
