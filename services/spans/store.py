"""Spans in one SQLite file that several processes write and anyone reads.

WAL mode lets readers and one writer at a time work together; a writer that is killed leaves nothing half done. The file
is bounded in spans and in bytes: each write looks at both, and lets as many of the oldest go as came too many; their
pages are used again. What a search needs lies in columns and two indexes. Attributes are JSON text as json.dumps writes
it, which a search may look into as text first.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from services.spans.schema import prepare

SPANS_MAX = 500_000
BYTES_MAX = 512 << 20
BUSY_SECONDS_MAX = 5.0
SERVICE_MISSING, SERVICE_EMPTY, SERVICE_NO_TEXT = (
    "missing-service-name",
    "empty-service-name",
    "service-name-wrong-type",
)
# SQLite's integers, and so its times, end here: in the year 2262.
INTEGER_MAX = 2**63 - 1
# Of what is there, one part in so many goes beyond what must, so that not every write has to take something away.
_TRIM_PART = 100

COLUMNS = (
    "trace_id, span_id, parent_id, service, instance, name, kind, start_ns, end_ns, status, error, scope, scope_version, "
    "trace_state, attributes, resource, events, links"
)
_TEXTS = 14  # columns before those that are JSON
_INSERT = f"INSERT INTO spans2 ({COLUMNS}) VALUES ({','.join('?' * 18)})"  # noqa: S608 - constants only
# An operation goes when the last span that had it does; `last_id` is that span's row, or a later one of its batch.
_OPERATION = (
    "INSERT INTO operations VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET last_id = MAX(last_id, excluded.last_id)"
)


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A finished span. Ids are lower-case hex; times are Unix nanoseconds.

    `kind` is INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER, or empty for unspecified; `status` is OK, ERROR or empty, and
    `error` its description; `trace_state` is W3C's header. An event is (name, time, attributes); a link is
    "trace_id-span_id". Attribute values are JSON's, and {"bytes": base64} for bytes.
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
    trace_state: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    resource: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[tuple[str, int, Mapping[str, Any]], ...] = ()
    links: tuple[str, ...] = ()


class SpanStore:
    """One connection to the file; not to be used by two threads at once."""

    def __init__(self, path: str, *, spans_max: int = SPANS_MAX, bytes_max: int = BYTES_MAX) -> None:
        """Raises sqlite3.Error when the file cannot be opened, SpanStoreError when it is not ours to use."""
        self._spans_max = spans_max
        self._bytes_max = bytes_max
        self.db = sqlite3.connect(path, timeout=BUSY_SECONDS_MAX, isolation_level=None, check_same_thread=False)
        try:
            prepare(self.db, path)
        except BaseException:
            self.db.close()
            raise

    def write(self, spans: Iterable[SpanRecord]) -> None:
        """Adds spans in one transaction. Raises sqlite3.Error when the file cannot be written."""
        rows = [_row(span) for span in spans]
        if not rows:
            return
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self.db.executemany(_INSERT, rows)
            (newest,) = self.db.execute("SELECT MAX(id) FROM spans2").fetchone()
            operations = {(service, name, kind, newest) for _, _, _, service, _, name, kind, *_ in rows}
            self.db.executemany(_OPERATION, operations)
            self._trim(newest)
            self.db.execute("COMMIT")
        except BaseException:
            # SQLite has rolled back by itself after some errors, such as a full disk.
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    def _trim(self, newest: int) -> None:
        (oldest,) = self.db.execute("SELECT MIN(id) FROM spans2").fetchone()
        held = newest - oldest + 1
        used = self.bytes_used()
        kept = min(held, self._spans_max, held * self._bytes_max // used)
        if kept < held:
            last_gone = newest - kept + kept // _TRIM_PART
            self.db.execute("DELETE FROM spans2 WHERE id <= ?", (last_gone,))
            self.db.execute("DELETE FROM operations WHERE last_id <= ?", (last_gone,))

    def probe(self) -> None:
        """Writes to the file without changing anything. Raises sqlite3.Error when it cannot be written."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self.db.execute("INSERT INTO operations VALUES ('', '', '', 0)")
            self.db.execute("DELETE FROM operations WHERE last_id = 0")
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    def bytes_used(self) -> int:
        """Bytes of the file that hold something; pages that are free again do not count."""
        (pages,) = self.db.execute("PRAGMA page_count").fetchone()
        (free,) = self.db.execute("PRAGMA freelist_count").fetchone()
        (size,) = self.db.execute("PRAGMA page_size").fetchone()
        return int((pages - free) * size)

    def trace(self, trace_id: str, *, copies: bool = False) -> list[SpanRecord]:
        """All spans of a trace that are in the store, by start time.

        A sender that heard no answer sends again: what came twice is given once, unless `copies`.
        """
        rows: Iterable[tuple[Any, ...]] = self.db.execute(
            f"SELECT {COLUMNS} FROM spans2 WHERE trace_id = ? ORDER BY start_ns, id",  # noqa: S608 - constants only
            (trace_id,),
        )
        return [_record(row) for row in (rows if copies else dict.fromkeys(rows))]

    def count(self) -> int:
        """How many spans are held."""
        (number,) = self.db.execute("SELECT COUNT(*) FROM spans2").fetchone()
        return int(number)

    def close(self) -> None:
        self.db.close()


def open_existing(path: str) -> SpanStore | None:
    """The store at `path` for reading, None where there is none yet."""
    return SpanStore(path) if Path(path).is_file() else None


def service_name(resource: Mapping[str, Any]) -> str:
    """The service by a resource's attributes; Jaeger's words where it has no name that could be one."""
    name = resource.get("service.name", SERVICE_MISSING)
    if not isinstance(name, str):
        return SERVICE_NO_TEXT
    return name or SERVICE_EMPTY


def _row(span: SpanRecord) -> tuple[Any, ...]:
    return (
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.service,
        span.instance,
        span.name,
        span.kind,
        min(span.start_ns, INTEGER_MAX),
        min(span.end_ns, INTEGER_MAX),
        span.status,
        span.error,
        span.scope,
        span.scope_version,
        span.trace_state,
        json.dumps(dict(span.attributes)),
        json.dumps(dict(span.resource)),
        json.dumps([[name, at, dict(attributes)] for name, at, attributes in span.events]) if span.events else "[]",
        json.dumps(list(span.links)) if span.links else "[]",
    )


def _record(row: tuple[Any, ...]) -> SpanRecord:
    attributes, resource, events, links = (json.loads(text) for text in row[_TEXTS:])
    events = tuple((name, at, values) for name, at, values in events)
    record = SpanRecord(*row[:_TEXTS])
    return replace(record, attributes=attributes, resource=resource, events=events, links=tuple(links))
