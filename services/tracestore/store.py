"""Spans in one SQLite file that several processes write and anyone reads.

WAL mode lets readers and one writer at a time work together; a writer that is killed leaves nothing half done. The file
is bounded: beyond SPANS_MAX the oldest tenth goes.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SPANS_MAX = 500_000
BUSY_SECONDS_MAX = 5.0
# Trimming looks at the count once in so many writes.
_TRIM_EVERY_WRITES = 50

_SCHEMA = """
CREATE TABLE IF NOT EXISTS spans (
    id INTEGER PRIMARY KEY,
    trace_id TEXT NOT NULL,
    span_id TEXT NOT NULL,
    parent_id TEXT NOT NULL,
    service TEXT NOT NULL,
    instance TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL,
    error TEXT NOT NULL,
    attributes TEXT NOT NULL,
    events TEXT NOT NULL,
    links TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS spans_by_trace ON spans (trace_id);
"""
_COLUMNS = (
    "trace_id, span_id, parent_id, service, instance, name, kind, start_ns, end_ns, error, attributes, events, links"
)
_INSERT = f"INSERT INTO spans ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A finished span. Ids are lower-case hex; times are Unix nanoseconds; `error` is empty for a span that went well.

    An event is (name, time, attributes); a link is the traceparent's "trace_id-span_id".
    """

    trace_id: str
    span_id: str
    parent_id: str
    service: str
    instance: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    error: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[tuple[str, int, Mapping[str, Any]], ...] = ()
    links: tuple[str, ...] = ()


class SpanStore:
    """One connection to the file, made when it is first needed; not shared between threads."""

    def __init__(self, path: str, *, spans_max: int = SPANS_MAX) -> None:
        self._spans_max = spans_max
        self._writes = 0
        self._db = sqlite3.connect(path, timeout=BUSY_SECONDS_MAX, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.executescript(_SCHEMA)

    def write(self, spans: Iterable[SpanRecord]) -> None:
        """Adds spans in one transaction. Raises sqlite3.Error when the file cannot be written."""
        rows = [_row(span) for span in spans]
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(_INSERT, rows)
            self._writes += 1
            if self._writes % _TRIM_EVERY_WRITES == 0:
                self._trim()
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self._db.execute("ROLLBACK")
            raise

    def _trim(self) -> None:
        oldest, newest = self._db.execute("SELECT MIN(id), MAX(id) FROM spans").fetchone()
        if newest is not None and newest - oldest + 1 > self._spans_max:
            self._db.execute("DELETE FROM spans WHERE id <= ?", (newest - self._spans_max * 9 // 10,))

    def trace(self, trace_id: str) -> list[SpanRecord]:
        """All spans of a trace that are in the store, by start time."""
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM spans WHERE trace_id = ? ORDER BY start_ns, id",  # noqa: S608 - constants only
            (trace_id,),
        )
        return [_record(row) for row in rows]

    def count(self) -> int:
        """How many spans are held."""
        (number,) = self._db.execute("SELECT COUNT(*) FROM spans").fetchone()
        return int(number)

    def close(self) -> None:
        self._db.close()


def open_existing(path: str) -> SpanStore | None:
    """The store at `path` for reading, None where there is none yet."""
    return SpanStore(path) if Path(path).is_file() else None


def _row(span: SpanRecord) -> tuple[Any, ...]:
    return (
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.service,
        span.instance,
        span.name,
        span.kind,
        span.start_ns,
        span.end_ns,
        span.error,
        json.dumps(dict(span.attributes)),
        json.dumps([[name, at, dict(attributes)] for name, at, attributes in span.events]),
        json.dumps(list(span.links)),
    )


def _record(row: tuple[Any, ...]) -> SpanRecord:
    attributes, events, links = (json.loads(text) for text in row[10:])
    events = tuple((name, at, values) for name, at, values in events)
    record = SpanRecord(*row[:10])
    return replace(record, attributes=attributes, events=events, links=tuple(links))
