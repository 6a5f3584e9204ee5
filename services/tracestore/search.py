"""Finding spans in the file: services, operations, traces by their spans, calls between services.

Each function runs over an open store, on the reader's thread. A search walks one service's spans from the newest, along
an index, and ends with as many traces as were asked for. Tags are looked for in a span's attributes, its resource and
its events, and compared as text, as Jaeger does. SQLite first looks for the tag in the JSON as text, which is quick and
lets nothing go that could be right; `has_tag` then reads the few rows that are left.
"""

import json
from collections import Counter
from contextlib import suppress
from typing import Any

from services.spans.store import SpanRecord, SpanStore
from services.tracestore.go_words import text_of
from services.tracestore.parameters import Search

# Of one answer. What is more would be hundreds of megabytes.
SPANS_ANSWERED_MAX = 200_000


class TooMuch(Exception):
    """An answer that would hold too much; the message says what to do."""


def list_services(store: SpanStore) -> list[str]:
    return [service for (service,) in store.db.execute("SELECT DISTINCT service FROM operations ORDER BY service")]


def list_operations(store: SpanStore, service: str, kind: str = "") -> list[tuple[str, str]]:
    """(name, kind) of each operation; the kind is lower-case or empty. `kind` empty: all."""
    rows = store.db.execute(
        "SELECT name, LOWER(kind) FROM operations WHERE service = ? ORDER BY name, kind", (service,)
    )
    return [(name, its) for name, its in rows if not kind or its == kind]


def find_trace_ids(store: SpanStore, wanted: Search) -> list[str]:
    """The newest traces that have a span as wanted."""
    where = ["service = :service", "start_ns BETWEEN :start AND :end"]
    values: dict[str, Any] = {"service": wanted.service, "start": wanted.start_ns, "end": wanted.end_ns}
    for condition, name, value in (
        ("name = :operation", "operation", wanted.operation),
        ("end_ns - start_ns >= :shortest", "shortest", wanted.shortest_ns),
        ("end_ns - start_ns <= :longest", "longest", wanted.longest_ns),
    ):
        if value:
            where.append(condition)
            values[name] = value
    for number, (key, value) in enumerate(wanted.tags):
        where.append(_tag_condition(number, key, value, values))
    store.db.create_function("has_tag", 5, _has_tag, deterministic=True)
    rows = store.db.execute(
        f"SELECT trace_id FROM spans2 WHERE {' AND '.join(where)} "  # noqa: S608 - conditions are constants, values are bound
        "ORDER BY start_ns DESC",
        values,
    )
    found: dict[str, None] = {}
    for (trace_id,) in rows:
        found[trace_id] = None
        if len(found) >= wanted.limit:
            break
    rows.close()
    return list(found)


def _tag_condition(number: int, key: str, value: str, values: dict[str, Any]) -> str:
    """The SQL of one tag; what it binds is added to `values`."""
    values[f"key{number}"], values[f"value{number}"] = key, value
    if key == "service.name":
        return f"service = :value{number}"
    needles: list[str] = []
    for start in _starts(key, value):
        name = f"start{number}_{len(needles)}"
        values[name] = start
        needles += [f"INSTR({column}, :{name})" for column in ("attributes", "resource", "events")]
    condition = f"({' OR '.join(needles)}) AND has_tag(attributes, resource, events, :key{number}, :value{number})"
    if key == "span.kind":
        return f"(LOWER(kind) = :value{number} OR {condition})"
    if key == "error" and value in ("true", "false"):
        # Jaeger's memory storage has these two the wrong way round (1.76); its other storages do as here.
        return "status = 'ERROR'" if value == "true" else "status <> 'ERROR'"
    return f"({condition})"


def _starts(key: str, value: str) -> list[str]:
    """How the JSON of a tag of this text can begin, as json.dumps writes it."""
    starts = [json.dumps(value), "[", "{"]
    if not value:
        starts.append("null")
    if value in ("true", "false"):
        starts.append(value)
    with suppress(ValueError):
        # A number: the first digit of either way to write it.
        starts += [text[: 1 + text.startswith("-")] for text in (json.dumps(float(value)), value.lstrip("+"))]
    return [f"{json.dumps(key)}: {start}" for start in starts]


def _has_tag(attributes: str, resource: str, events: str, key: str, value: str) -> bool:
    places = [json.loads(attributes), json.loads(resource), *(event[2] for event in json.loads(events))]
    return any(key in place and text_of(place[key]) == value for place in places)


def traces(store: SpanStore, trace_ids: list[str], *, copies: bool = False) -> list[list[SpanRecord]]:
    """The spans of each trace that is there, in the order of `trace_ids`. Raises TooMuch."""
    found: list[list[SpanRecord]] = []
    spans_found = 0
    for trace_id in trace_ids:
        spans = store.trace(trace_id, copies=copies)
        spans_found += len(spans)
        if found and spans_found > SPANS_ANSWERED_MAX:
            raise TooMuch(
                f"the answer would hold more than {SPANS_ANSWERED_MAX} spans; ask for fewer traces with 'limit'"
            )
        if spans:
            found.append(spans)
    return found


def dependencies(store: SpanStore, start_ns: int, end_ns: int, service: str = "") -> list[tuple[str, str, int]]:
    """(caller, called, calls): how often a span of one service has a child of another, or of its own.

    `service`: only calls from and to it.
    """
    rows = store.db.execute(
        # CROSS: in this order. SQLite cannot know that a span has one parent and a trace many spans.
        "SELECT parent.service, child.service, COUNT(*) FROM spans2 AS child CROSS JOIN spans2 AS parent "
        "ON parent.trace_id = child.trace_id AND parent.span_id = child.parent_id "
        "WHERE child.start_ns > ? AND child.start_ns < ? AND child.parent_id <> '' GROUP BY 1, 2 ORDER BY 1, 2",
        (start_ns, end_ns),
    )
    calls: Counter[tuple[str, str]] = Counter()
    for parent, child, count in rows:
        if not service or service in (parent, child):
            calls[parent, child] += count
    return [(parent, child, count) for (parent, child), count in calls.items()]
