"""The span file: bounded, shared by writers, whole after a kill, and clear about files that are not its own."""

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.spans.store import SCHEMA_VERSION, SpanRecord, SpanStore, SpanStoreError, open_existing


def record(number: int, trace: int = 0, padding: int = 0) -> SpanRecord:
    return SpanRecord(
        trace_id=f"{trace or number:032x}",
        span_id=f"{number:016x}",
        parent_id="",
        service="api",
        instance="a-0",
        name="x",
        kind="SERVER",
        start_ns=number,
        end_ns=number + 1,
        attributes={"padding": "x" * padding},
        events=(("woken", 5, {"by": "y"}),),
        links=(f"{1:032x}-{2:016x}",),
    )


def path(tmp_path: Path) -> str:
    return str(tmp_path / "traces.sqlite")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    store = SpanStore(path(tmp_path))
    spans = [record(2, trace=7), record(1, trace=7)]
    store.write(spans)
    assert store.trace(f"{7:032x}") == spans[::-1], "by start"
    store.close()
    again = open_existing(path(tmp_path))
    assert again is not None and again.count() == 2
    again.close()
    assert open_existing(str(tmp_path / "none")) is None


def test_beyond_the_bound_in_spans_the_oldest_go(tmp_path: Path) -> None:
    store = SpanStore(path(tmp_path), spans_max=1_000)
    for batch in range(200):
        store.write(record(batch * 50 + number + 1) for number in range(50))
    assert store.count() <= 2_000, "the bound, and what comes between two looks at it"
    assert store.trace(f"{10_000:032x}") and not store.trace(f"{1:032x}")
    store.close()


def test_beyond_the_bound_in_bytes_the_oldest_go_and_the_file_stops_growing(tmp_path: Path) -> None:
    bytes_max = 2 << 20
    store = SpanStore(path(tmp_path), bytes_max=bytes_max)
    sizes = []
    for batch in range(300):
        store.write(record(batch * 20 + number + 1, padding=2_000) for number in range(20))
        sizes.append(Path(path(tmp_path)).stat().st_size)
    assert store.bytes_used() < 2 * bytes_max
    assert max(sizes) < 2 * bytes_max, "15 MB were written"
    assert store.trace(f"{6_000:032x}")
    store.close()


def test_several_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    SpanStore(path(tmp_path)).close()

    def write(writer: int) -> None:
        store = SpanStore(path(tmp_path))
        for batch in range(20):
            store.write(record(writer * 100_000 + batch * 10 + number + 1) for number in range(10))
        store.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    store = SpanStore(path(tmp_path))
    assert store.count() == 800
    store.close()


_WRITER = """
import sys
from services.spans.store import SpanStore
from tests.unit.spans.test_store import record
store = SpanStore(sys.argv[1])
for batch in range(10**6):
    store.write(record(batch * 10 + number + 1, trace=batch + 1) for number in range(10))
    print(batch, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_batches(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, path(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) >= 30:
            break
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    store = SpanStore(path(tmp_path))
    assert store.count() >= 300
    assert all(len(store.trace(f"{batch + 1:032x}")) == 10 for batch in range(store.count() // 10))
    store.write([record(999_999_999)])
    store.close()


def test_a_file_of_a_newer_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    database = sqlite3.connect(path(tmp_path))
    database.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    database.close()
    with pytest.raises(SpanStoreError, match=r"newer version \(schema 3, this one knows 2\); remove it"):
        SpanStore(path(tmp_path))


def test_a_file_of_an_older_version_loses_its_spans_and_serves(tmp_path: Path) -> None:
    database = sqlite3.connect(path(tmp_path))
    database.execute("CREATE TABLE spans (id INTEGER PRIMARY KEY, trace_id TEXT)")
    database.execute("INSERT INTO spans (trace_id) VALUES ('x')")
    database.commit()
    database.close()
    store = SpanStore(path(tmp_path))
    store.write([record(1)])
    assert store.count() == 1
    store.close()


def test_a_file_that_is_no_database_is_an_error_of_sqlite(tmp_path: Path) -> None:
    Path(path(tmp_path)).write_text("rubbish" * 1_000)
    with pytest.raises(sqlite3.DatabaseError):
        SpanStore(path(tmp_path))


def test_a_write_that_fails_leaves_the_store_usable(tmp_path: Path) -> None:
    store = SpanStore(path(tmp_path))
    broken = record(1)
    store.db.execute("PRAGMA query_only=1")
    with pytest.raises(sqlite3.OperationalError):
        store.write([broken])
    store.db.execute("PRAGMA query_only=0")
    store.write([broken])
    assert store.count() == 1
    store.close()
