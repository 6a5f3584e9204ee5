"""The span file: bounded, shared by writers, whole after a kill, and clear about files that are not its own."""

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from services.spans.schema import SCHEMA_VERSION, SpanStoreError, upgrade
from services.spans.store import SpanRecord, SpanStore, open_existing


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
    assert 980 <= store.count() <= 1_000
    assert store.trace(f"{10_000:032x}") and not store.trace(f"{1:032x}")
    store.close()


def test_beyond_the_bound_in_bytes_the_oldest_go_and_the_file_stops_growing(tmp_path: Path) -> None:
    bytes_max = 2 << 20
    store = SpanStore(path(tmp_path), bytes_max=bytes_max)
    sizes = []
    for batch in range(300):
        store.write(record(batch * 20 + number + 1, padding=2_000) for number in range(20))
        sizes.append(Path(path(tmp_path)).stat().st_size)
    assert store.bytes_used() <= bytes_max
    # What a write takes before older spans go for it stays free afterwards.
    assert max(sizes) < bytes_max + (1 << 18), "13 MB were written"
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
from services.spans.schema import SCHEMA_VERSION, SpanStoreError, upgrade
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
    SpanStore(path(tmp_path)).close()
    database = sqlite3.connect(path(tmp_path))
    database.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    database.close()
    with pytest.raises(SpanStoreError, match=r"newer version \(schema 4, this one knows 3\); remove it"):
        SpanStore(path(tmp_path))


@pytest.mark.parametrize("version", [0, 2, SCHEMA_VERSION])
def test_the_database_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path, version: int) -> None:
    database = sqlite3.connect(path(tmp_path))
    database.execute("CREATE TABLE spans (width INTEGER)")
    database.execute("INSERT INTO spans VALUES (7)")
    database.execute(f"PRAGMA user_version={version}")
    database.commit()
    before = Path(path(tmp_path)).read_bytes()
    with pytest.raises(SpanStoreError, match=r"another program \(it has spans\); name another file"):
        SpanStore(path(tmp_path))
    assert Path(path(tmp_path)).read_bytes() == before
    database.close()


_FIRST = """
CREATE TABLE spans (id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT NOT NULL,
    service TEXT NOT NULL, instance TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL, error TEXT NOT NULL, attributes TEXT NOT NULL, events TEXT NOT NULL, links TEXT NOT NULL);
CREATE INDEX spans_by_trace ON spans (trace_id);
INSERT INTO spans VALUES (5, '{trace}', '0000000000000001', '', 'api', 'a-0', 'x', 'SERVER', 10, 20, 'broke',
    '{{"padding": ""}}', '[["woken", 5, {{"by": "y"}}]]', '[]');
"""
_SECOND = """
CREATE TABLE spans2 (id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT NOT NULL,
    service TEXT NOT NULL, instance TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL, status TEXT NOT NULL, error TEXT NOT NULL, scope TEXT NOT NULL, scope_version TEXT NOT NULL,
    attributes TEXT NOT NULL, resource TEXT NOT NULL, events TEXT NOT NULL, links TEXT NOT NULL);
CREATE INDEX spans2_by_trace ON spans2 (trace_id);
CREATE INDEX spans2_by_service ON spans2 (service, start_ns);
CREATE TABLE operations (
    service TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (service, name, kind)
) WITHOUT ROWID;
INSERT INTO spans2 VALUES (5, '{trace}', '0000000000000001', '', 'api', 'a-0', 'x', 'SERVER', 10, 20, 'ERROR', 'broke',
    '', '', '{{"padding": ""}}', '{{}}', '[["woken", 5, {{"by": "y"}}]]', '[]');
PRAGMA user_version=2;
"""


@pytest.mark.parametrize("older", [_FIRST, _SECOND], ids=["first", "second"])
def test_a_file_of_an_older_version_keeps_its_spans_and_serves(tmp_path: Path, older: str) -> None:
    trace = f"{7:032x}"
    database = sqlite3.connect(path(tmp_path))
    database.executescript(older.format(trace=trace))
    database.close()
    store = SpanStore(path(tmp_path))
    expected = replace(record(1, trace=7), start_ns=10, end_ns=20, status="ERROR", error="broke", links=())
    assert store.trace(trace) == [expected]
    assert store.db.execute("SELECT service, name, kind FROM operations").fetchall() == [("api", "x", "SERVER")]
    store.write([record(2, trace=7)])
    assert len(store.trace(trace)) == 2
    assert store.db.execute("SELECT last_id - (SELECT MAX(id) FROM spans2) FROM operations").fetchall() == [(0,)]
    store.close()


def test_what_another_process_has_brought_up_to_date_stays_as_it_is(tmp_path: Path) -> None:
    store = SpanStore(path(tmp_path))
    store.write([record(1)])
    upgrade(store.db)
    assert store.count() == 1
    store.close()


_OPENER = """
import sys
from services.spans.store import SpanStore
from tests.unit.spans.test_store import record
sys.stdin.readline()
store = SpanStore(sys.argv[1])
store.write([record(int(sys.argv[2]))])
store.close()
"""


def test_processes_that_make_the_file_at_once_all_write_it(tmp_path: Path) -> None:
    openers = [
        subprocess.Popen([sys.executable, "-c", _OPENER, path(tmp_path), str(number)], stdin=subprocess.PIPE)
        for number in range(1, 7)
    ]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write(b"go\n")
        opener.stdin.close()
    assert [opener.wait(60) for opener in openers] == [0] * 6
    store = SpanStore(path(tmp_path))
    assert store.count() == 6
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


@pytest.mark.parametrize(
    "broken", [replace(record(1), name="\ud800"), replace(record(1), start_ns=-(2**63) - 1)], ids=["text", "time"]
)
def test_a_span_that_sqlite_cannot_hold_leaves_the_store_usable(tmp_path: Path, broken: SpanRecord) -> None:
    store = SpanStore(path(tmp_path))
    with pytest.raises((ValueError, OverflowError)):
        store.write([record(3), broken])
    store.write([record(2)])
    assert store.count() == 1
    store.close()


def test_a_time_beyond_sqlites_integers_is_the_last_one_there_is(tmp_path: Path) -> None:
    store = SpanStore(path(tmp_path))
    store.write([replace(record(1), start_ns=2**64 - 1, end_ns=2**64 - 1)])
    assert store.trace(f"{1:032x}")[0].start_ns == 2**63 - 1
    store.close()


def test_operations_go_with_their_last_span(tmp_path: Path) -> None:
    store = SpanStore(path(tmp_path), spans_max=1_000)
    for number in range(1, 4_001):
        store.write([replace(record(number), name=f"once-{number}"), replace(record(number), name="always")])
    (names,) = store.db.execute("SELECT COUNT(*) FROM operations").fetchone()
    assert names <= 502
    assert store.db.execute("SELECT 1 FROM operations WHERE name = 'always'").fetchone()
    store.close()


def test_what_came_twice_is_given_once(tmp_path: Path) -> None:
    store = SpanStore(path(tmp_path))
    store.write([record(1, trace=7), record(2, trace=7)])
    store.write([record(1, trace=7), record(2, trace=7)])
    assert len(store.trace(f"{7:032x}")) == 2
    assert len(store.trace(f"{7:032x}", copies=True)) == 4
    store.close()


def test_a_probe_writes_and_changes_nothing(tmp_path: Path) -> None:
    store = SpanStore(path(tmp_path))
    store.write([record(1)])
    store.probe()
    assert store.db.execute("SELECT * FROM operations").fetchall() == [("api", "x", "SERVER", 1)]
    store.db.execute("PRAGMA query_only=1")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.probe()
    store.close()
