"""Searches over a file: what a tag is compared with, where a walk stops, and that no search reads all spans."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.spans.store import SpanRecord, SpanStore
from services.tracestore import search
from services.tracestore.parameters import Search

EVERYTHING = Search("api", "", (), 0, 2**62, None, None, 100)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SpanStore]:
    opened = SpanStore(str(tmp_path / "traces.sqlite"))
    yield opened
    opened.close()


def span(number: int, trace: int, start_ns: int, **fields: Any) -> SpanRecord:
    plain = SpanRecord(f"{trace:032x}", f"{number:016x}", "", "api", "a-0", "x", "SERVER", start_ns, start_ns + 10)
    return replace(plain, **fields)


def found(store: SpanStore, **fields: Any) -> list[int]:
    return [int(trace, 16) for trace in search.find_trace_ids(store, replace(EVERYTHING, **fields))]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ('ü\x00"\\', 'ü\x00"\\'),
        ("", ""),
        (None, ""),
        (True, "true"),
        (7, "7"),
        (-7, "-7"),
        (9_999_999_999_999_999_999, "9999999999999999999"),
        (1e-5, "0.00001"),
        (-1e-5, "-0.00001"),
        (1e21, "1e+21"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Inf"),
        (float("inf"), "+Inf"),
        ([1, "a"], '[1,"a"]'),
        ({"b": 1, "a": 2.0}, '{"a":2,"b":1}'),
        ({"bytes": "AAA="}, "AAA="),
    ],
)
@pytest.mark.parametrize("place", ["attributes", "resource", "events"])
@pytest.mark.parametrize("key", ["key", 'a "quoted" key', "key.ü"])
def test_a_tag_is_found_wherever_it_stands(store: SpanStore, place: str, key: str, value: Any, text: str) -> None:
    tags = {key: value}
    fields: dict[str, Any] = {place: (("event", 1, tags),) if place == "events" else tags}
    inside = {"other": {key: text}, "text": f'"{key}": "{text}"'}
    others = (inside, {key: "?"}, {key: [text]}, {key: {"x": text}}, {key: 71}, {key: -71}, {key: 1.5})
    store.write([span(1, 1, 10, **fields)])
    store.write(span(number, number, 20, attributes=other) for number, other in enumerate(others, 2))
    assert found(store, tags=((key, text),)) == [1]


def test_the_newest_traces_come_first_and_each_once(store: SpanStore) -> None:
    store.write([span(number, number % 7, number) for number in range(99, 0, -1)])
    assert found(store, limit=3) == [1, 0, 6]
    assert found(store, start_ns=10, end_ns=12) == [5, 4, 3]


def test_all_of_what_is_wanted_is_wanted_of_one_span(store: SpanStore) -> None:
    store.write([span(1, 1, 10, name="a", attributes={"k": "v"}), span(2, 1, 10, name="b", attributes={"l": "w"})])
    assert found(store, operation="a", tags=(("k", "v"),)) == [1]
    assert found(store, operation="a", tags=(("l", "w"),)) == []
    assert found(store, tags=(("k", "v"), ("l", "w"))) == []
    assert found(store, tags=(("k", "v"),), shortest_ns=10, longest_ns=10) == [1]
    assert found(store, tags=(("k", "v"),), shortest_ns=11) == []


def test_no_search_looks_at_all_spans(store: SpanStore) -> None:
    """SQLite's own plan: a service's spans along the index, and calls between services out of an index alone."""
    plans: list[str] = []

    def note(statement: str) -> None:
        if statement.startswith("SELECT") and "EXPLAIN" not in statement:
            plans.append(statement)

    store.write([span(1, 1, 10)])
    store.db.set_trace_callback(note)
    found(store, operation="a", tags=(("k", "v"), ("error", "true"), ("span.kind", "server")), shortest_ns=5)
    search.dependencies(store, 0, 2**62)
    store.trace(f"{1:032x}")
    store.db.set_trace_callback(None)
    details = [row[3] for plan in plans for row in store.db.execute(f"EXPLAIN QUERY PLAN {plan}")]
    assert [detail for detail in details if detail.startswith("SEARCH spans2")] == [
        "SEARCH spans2 USING INDEX spans2_by_service (service=? AND start_ns>? AND start_ns<?)",
        "SEARCH spans2 USING INDEX spans2_by_trace (trace_id=?)",
    ]
    scans = [detail for detail in details if detail.startswith("SCAN") and "VIRTUAL" not in detail]
    assert scans == ["SCAN child USING COVERING INDEX spans2_by_trace"]


def test_an_answer_holds_so_much_and_no_more(store: SpanStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SPANS_ANSWERED_MAX", 5)
    store.write([span(number, number // 4, number) for number in range(12)])
    ids = [f"{trace:032x}" for trace in range(3)]
    assert len(search.traces(store, ids[:1])[0]) == 4
    with pytest.raises(search.TooMuch, match="ask for fewer traces with 'limit'"):
        search.traces(store, ids)


def test_a_search_that_takes_too_long_is_given_up(store: SpanStore) -> None:
    store.write([span(number, number, number) for number in range(1, 2_000)])
    store.db.set_progress_handler(lambda: True, 1_000)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        found(store, tags=(("absent", "x"),))
    store.db.set_progress_handler(None, 0)
    assert found(store, limit=1) == [1_999]
