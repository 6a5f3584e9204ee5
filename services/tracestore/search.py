"""Finding spans in the file: services, operations, traces by their spans, calls between services.

Each function runs one or two statements over an open store and is called on the reader's thread. Tags are looked for in
a span's attributes, its resource, and its events, and compared as text, as Jaeger does; `error` and `span.kind` mean the
status and the kind.
"""

from collections import Counter
from typing import Any

from services.spans.store import SpanRecord, SpanStore
from services.tracestore.parameters import Search

# A value of JSON as Jaeger writes it: a whole float without its point, bytes in base64, nothing as empty.
_TEXT = (
    "CASE {0}type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' WHEN 'null' THEN '' "
    "WHEN 'real' THEN CASE WHEN {0}value = CAST({0}value AS INTEGER) THEN CAST(CAST({0}value AS INTEGER) AS TEXT) "
    "ELSE CAST({0}value AS TEXT) END "
    "WHEN 'object' THEN COALESCE(json_extract({0}value, '$.bytes'), {0}value) ELSE CAST({0}value AS TEXT) END"
)
_IN_EVENTS = "json_each(spans2.events) AS event, json_each(json_extract(event.value, '$[2]')) AS field"
_HAS = "EXISTS (SELECT 1 FROM {0} WHERE {1}key = :key AND {2} = :value)"
_TAG = " OR ".join(
    (
        _HAS.format("json_each(spans2.attributes)", "", _TEXT.format("")),
        _HAS.format("json_each(spans2.resource)", "", _TEXT.format("")),
        _HAS.format(_IN_EVENTS, "field.", _TEXT.format("field.")),
    )
)


def list_services(store: SpanStore) -> list[str]:
    return [service for (service,) in store.db.execute("SELECT DISTINCT service FROM operations ORDER BY service")]


def list_operations(store: SpanStore, service: str, kind: str = "") -> list[tuple[str, str]]:
    """(name, kind) of each operation; the kind is one of SpanRecord's, or empty. `kind` empty: all."""
    rows = store.db.execute("SELECT name, kind FROM operations WHERE service = ? ORDER BY name, kind", (service,))
    return [(name, its) for name, its in rows if not kind or its == kind.upper()]


def find_trace_ids(store: SpanStore, wanted: Search) -> list[str]:
    """The newest traces that have a span as wanted."""
    where = ["service = :service", "start_ns BETWEEN :start AND :end"]
    values: dict[str, Any] = {
        "service": wanted.service,
        "start": wanted.start_ns,
        "end": wanted.end_ns,
        "limit": max(0, wanted.limit),
    }
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
    statement = (
        f"SELECT trace_id FROM spans2 WHERE {' AND '.join(where)} "  # noqa: S608 - conditions are constants, values are bound
        "GROUP BY trace_id ORDER BY MAX(start_ns) DESC LIMIT :limit"
    )
    return [trace_id for (trace_id,) in store.db.execute(statement, values)]


def _tag_condition(number: int, key: str, value: str, values: dict[str, Any]) -> str:
    """The SQL of one tag; what it binds is added to `values`."""
    if key == "error":
        return "status = 'ERROR'" if value == "true" else "status <> 'ERROR'"
    if key == "span.kind":
        values[f"value{number}"] = value.upper()
        return f"kind = :value{number}"
    values[f"key{number}"], values[f"value{number}"] = key, value
    return "(" + _TAG.replace(":key", f":key{number}").replace(":value", f":value{number}") + ")"


def traces(store: SpanStore, trace_ids: list[str]) -> list[list[SpanRecord]]:
    """The spans of each trace that is there, in the order of `trace_ids`."""
    found = [store.trace(trace_id) for trace_id in trace_ids]
    return [spans for spans in found if spans]


def dependencies(store: SpanStore, start_ns: int, end_ns: int) -> list[tuple[str, str, int]]:
    """(caller, called, calls): how often a span of one service has a child of another, or of its own."""
    rows = store.db.execute(
        "SELECT parent.service, child.service, COUNT(*) FROM spans2 AS child JOIN spans2 AS parent "
        "ON parent.trace_id = child.trace_id AND parent.span_id = child.parent_id "
        "WHERE child.start_ns > ? AND child.start_ns < ? AND child.parent_id <> '' GROUP BY 1, 2 ORDER BY 1, 2",
        (start_ns, end_ns),
    )
    calls: Counter[tuple[str, str]] = Counter()
    for parent, child, count in rows:
        calls[parent, child] += count
    return [(parent, child, count) for (parent, child), count in calls.items()]
