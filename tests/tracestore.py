"""Our own trace store as a process, for tests."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.eventually import eventually

STOP_SECONDS_MAX = 10


@dataclass(frozen=True)
class RunningTraceStore:
    """`otlp` is host:port, `url` that of the query API."""

    otlp: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def metric(self, name: str) -> int:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = dict(line.split(" ") for line in answer.read().decode().splitlines() if not line.startswith("#"))
        return int(lines[f"tracestore_{name}"])


@contextmanager
def running_tracestore(folder: Path, *options: str) -> Iterator[RunningTraceStore]:
    """A trace store that serves, with its file in `folder`. It must end well when it is asked to."""
    command = [sys.executable, "-m", "services.tracestore", "--name", "tracestore-0"]
    command += ["--listen", "127.0.0.1:0", "--query-listen", "127.0.0.1:0"]
    command += ["--database", str(folder / "traces.sqlite"), *options]
    log = folder / "tracestore.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            eventually(lambda: '"listening"' in log.read_text() or process.poll() is not None)
            (listening,) = [line for line in log.read_text().splitlines() if '"listening"' in line]
            at = json.loads(listening)
            yield RunningTraceStore(at["address"], f"http://{at['query']}", process, log)
        finally:
            process.terminate()
            assert process.wait(STOP_SECONDS_MAX) == 0, log.read_text()
