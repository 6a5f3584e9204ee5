"""Spans in one SQLite file that several processes write and anyone reads.

WAL mode lets readers and one writer at a time work together; a writer that is killed leaves nothing half done. The file
is bounded in spans and in bytes: beyond either the oldest go, and its pages are used again. What a search needs
lies in columns and two indexes; attributes are JSON, which SQLite looks into.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SPANS_MAX = 500_000
BYTES_MAX = 1 << 30
BUSY_SECONDS_MAX = 5.0
SERVICE_MISSING = "missing-service-name"
# The bounds are looked at once in so many writes.
_TRIM_EVERY_WRITES = 20
# Of the tables below. A file of an older one loses its spans; one of a newer one is refused.
SCHEMA_VERSION = 2

_SCHEMA = """
DROP TABLE IF EXISTS spans;
CREATE TABLE IF NOT EXISTS spans2 (
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
    status TEXT NOT NULL,
    error TEXT NOT NULL,
    scope TEXT NOT NULL,
    scope_version TEXT NOT NULL,
    attributes TEXT NOT NULL,
    resource TEXT NOT NULL,
    events TEXT NOT NULL,
    links TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS spans2_by_trace ON spans2 (trace_id);
CREATE INDEX IF NOT EXISTS spans2_by_service ON spans2 (service, start_ns);
CREATE TABLE IF NOT EXISTS operations (
    service TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (service, name, kind)
) WITHOUT ROWID;
"""
COLUMNS = (
    "trace_id, span_id, parent_id, service, instance, name, kind, start_ns, end_ns, status, error, scope, scope_version, "
    "attributes, resource, events, links"
)
_INSERT = f"INSERT INTO spans2 ({COLUMNS}) VALUES ({','.join('?' * 17)})"  # noqa: S608 - constants only


class SpanStoreError(Exception):
    """The file is not ours to use; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A finished span. Ids are lower-case hex; times are Unix nanoseconds.

    `kind` is INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER, or empty for unspecified; `status` is OK, ERROR or empty, and
    `error` its description. An event is (name, time, attributes); a link is "trace_id-span_id". Attribute values are
    JSON's, and {"bytes": base64} for bytes.
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
    status: str = ""
    error: str = ""
    scope: str = ""
    scope_version: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    resource: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[tuple[str, int, Mapping[str, Any]], ...] = ()
    links: tuple[str, ...] = ()


class SpanStore:
    """One connection to the file; not to be used by two threads at once."""

    def __init__(self, path: str, *, spans_max: int = SPANS_MAX, bytes_max: int = BYTES_MAX) -> None:
        """Raises sqlite3.Error when the file cannot be opened, SpanStoreError when a newer version made it."""
        self._path = path
        self._spans_max = spans_max
        self._bytes_max = bytes_max
        self._writes = 0
        self._operations: set[tuple[str, str, str]] = set()
        self.db = sqlite3.connect(path, timeout=BUSY_SECONDS_MAX, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except BaseException:
            self.db.close()
            raise

    def _prepare(self) -> None:
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=OFF")
        self.db.execute(f"PRAGMA journal_size_limit={16 << 20}")
        (version,) = self.db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise SpanStoreError(
                f"{self._path} was written by a newer version (schema {version}, this one knows {SCHEMA_VERSION}); "
                "remove it, or name another file"
            )
        if version < SCHEMA_VERSION:
            self.db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                self.db.execute(statement)
            self.db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            self.db.execute("COMMIT")

    def write(self, spans: Iterable[SpanRecord]) -> None:
        """Adds spans in one transaction. Raises sqlite3.Error when the file cannot be written."""
        spans = list(spans)
        rows = [_row(span) for span in spans]
        new = {(span.service, span.name, span.kind) for span in spans} - self._operations
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self.db.executemany(_INSERT, rows)
            self.db.executemany("INSERT OR IGNORE INTO operations VALUES (?,?,?)", new)
            self._writes += 1
            if self._writes % _TRIM_EVERY_WRITES == 0:
                self._trim()
            self.db.execute("COMMIT")
        except sqlite3.Error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise
        self._operations |= new

    def _trim(self) -> None:
        oldest, newest = self.db.execute("SELECT MIN(id), MAX(id) FROM spans2").fetchone()
        if newest is None:
            return
        held = newest - oldest + 1
        kept = held if held <= self._spans_max else self._spans_max * 9 // 10
        used = self.bytes_used()
        if used > self._bytes_max:
            kept = min(kept, held * self._bytes_max * 9 // (used * 10))
        if kept < held:
            self.db.execute("DELETE FROM spans2 WHERE id <= ?", (newest - kept,))

    def bytes_used(self) -> int:
        """Bytes of the file that hold something; pages that are free again do not count."""
        (pages,) = self.db.execute("PRAGMA page_count").fetchone()
        (free,) = self.db.execute("PRAGMA freelist_count").fetchone()
        (size,) = self.db.execute("PRAGMA page_size").fetchone()
        return int((pages - free) * size)

    def trace(self, trace_id: str) -> list[SpanRecord]:
        """All spans of a trace that are in the store, by start time."""
        return self.select("trace_id = ? ORDER BY start_ns, id", (trace_id,))

    def select(self, where: str, values: Sequence[Any]) -> list[SpanRecord]:
        """The spans for which the SQL condition `where`, which comes from code alone, holds of the columns."""
        rows = self.db.execute(f"SELECT {COLUMNS} FROM spans2 WHERE {where}", values)  # noqa: S608 - see above
        return [_record(row) for row in rows]

    def count(self) -> int:
        """How many spans are held."""
        (number,) = self.db.execute("SELECT COUNT(*) FROM spans2").fetchone()
        return int(number)

    def close(self) -> None:
        self.db.close()


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
        span.status,
        span.error,
        span.scope,
        span.scope_version,
        json.dumps(dict(span.attributes)),
        json.dumps(dict(span.resource)),
        json.dumps([[name, at, dict(attributes)] for name, at, attributes in span.events]) if span.events else "[]",
        json.dumps(list(span.links)) if span.links else "[]",
    )


def _record(row: tuple[Any, ...]) -> SpanRecord:
    attributes, resource, events, links = (json.loads(text) for text in row[13:])
    events = tuple((name, at, values) for name, at, values in events)
    record = SpanRecord(*row[:13])
    return replace(record, attributes=attributes, resource=resource, events=events, links=tuple(links))
