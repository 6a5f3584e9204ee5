"""The tables of a span file, and the way from older ones to them.

PRAGMA user_version holds the version. A file of an older one is brought up to date where it stands, spans and all; one
of a newer version, or of another program, is refused.
"""

import sqlite3

SCHEMA_VERSION = 3

_TABLES = """
CREATE TABLE spans2 (
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
    links TEXT NOT NULL,
    trace_state TEXT NOT NULL DEFAULT ''
);
"""
# `operations` and the indexes hold nothing that the spans do not say: they are made anew. Either index answers one question
# without a look at the spans themselves: which calls there were between services, and which traces are the newest.
_DERIVED = """
DROP TABLE IF EXISTS operations;
DROP INDEX IF EXISTS spans2_by_trace;
DROP INDEX IF EXISTS spans2_by_service;
CREATE INDEX spans2_by_trace ON spans2 (trace_id, span_id, parent_id, service, start_ns);
CREATE INDEX spans2_by_service ON spans2 (service, start_ns, trace_id);
CREATE TABLE operations (
    service TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, last_id INTEGER NOT NULL,
    PRIMARY KEY (service, name, kind)
) WITHOUT ROWID;
INSERT INTO operations SELECT service, name, kind, MAX(id) FROM spans2 GROUP BY service, name, kind;
"""
# What the first version kept; it had no number.
_FIRST = (
    "trace_id, span_id, parent_id, service, instance, name, kind, start_ns, end_ns, error, attributes, events, links"
)
_FROM_FIRST = f"""
{_TABLES}
INSERT INTO spans2 ({_FIRST}, status, scope, scope_version, resource)
    SELECT {_FIRST}, CASE error WHEN '' THEN '' ELSE 'ERROR' END, '', '', '{{}}' FROM spans ORDER BY id;
DROP TABLE spans;
"""  # noqa: S608 - constants only
_FROM_SECOND = "ALTER TABLE spans2 ADD COLUMN trace_state TEXT NOT NULL DEFAULT '';"


class SpanStoreError(Exception):
    """The file is not ours to use; the message says why, and what to do."""


def prepare(db: sqlite3.Connection, path: str) -> None:
    """Makes the tables, or brings them up to date; several processes may do so at once.

    Raises sqlite3.Error when the file cannot be read or written, SpanStoreError when it is not ours to use.
    """
    version = _known_version(db, path)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=OFF")
    db.execute(f"PRAGMA journal_size_limit={16 << 20}")
    if version < SCHEMA_VERSION:
        upgrade(db)


def _known_version(db: sqlite3.Connection, path: str) -> int:
    """The version, 0 for the first and for an empty file. Raises SpanStoreError."""
    # One transaction: another process may be making the tables.
    db.execute("BEGIN")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    tables = _tables(db)
    columns = {name for _, name, *_ in db.execute("PRAGMA table_info(spans)")}
    db.execute("COMMIT")
    first = not tables or (tables == {"spans"} and columns.issuperset(_FIRST.split(", ")))
    ours = first if version == 0 else "spans2" in tables
    if not ours:
        names = ", ".join(sorted(tables)) or "no table"
        raise SpanStoreError(f"{path} is the database of another program (it has {names}); name another file")
    if version > SCHEMA_VERSION:
        raise SpanStoreError(
            f"{path} was written by a newer version (schema {version}, this one knows {SCHEMA_VERSION}); "
            "remove it, or name another file"
        )
    return int(version)


def upgrade(db: sqlite3.Connection) -> None:
    """Makes the tables of this version, unless somebody else has by now."""
    db.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it while this one waited for its turn.
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version < SCHEMA_VERSION:
            begin = _FROM_FIRST if "spans" in _tables(db) else _TABLES
            change = _FROM_SECOND if version == 2 else begin
            for statement in (change + _DERIVED).split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
