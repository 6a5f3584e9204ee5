"""The real Jaeger, built once from its Go module where Go is on the machine, and run with its memory storage.

The binary is kept in the user's cache folder; two test runs at once build it once. Source builds carry no user interface,
only the query API. Measured on two shared cores: 2.5 minutes to fetch the modules, 5 to build.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import pytest

from services.lab.etcd import free_ports

VERSION = "v1.76.0"
PROGRAM = "github.com/jaegertracing/jaeger/cmd/jaeger"
BUILD_SECONDS_MAX = 1_800
_CONFIG = """
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {{receivers: [otlp], processors: [], exporters: [jaeger_storage_exporter]}}
  telemetry: {{metrics: {{level: none}}, logs: {{level: warn}}}}
extensions:
  jaeger_query:
    storage: {{traces: memory}}
    grpc: {{endpoint: "127.0.0.1:{grpc}"}}
    http: {{endpoint: "127.0.0.1:{http}"}}
  jaeger_storage:
    backends: {{memory: {{memory: {{max_traces: 100000}}}}}}
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{otlp}"}}}}}}
exporters:
  jaeger_storage_exporter: {{trace_storage: memory}}
"""


def jaeger_binary() -> Path:
    """The program, built when it is not there yet. Skips where it cannot be."""
    cache = Path(platformdirs.user_cache_dir("orrery"))
    binary = cache / f"jaeger-{VERSION}"
    if binary.exists():
        return binary
    go = shutil.which("go")
    if go is None:
        pytest.skip(f"no Go on this machine to build Jaeger {VERSION} with, and none in {cache}")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "jaeger.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            _build(go, cache, binary)
    return binary


def _build(go: str, cache: Path, binary: Path) -> None:
    folder = cache / "jaeger-build"
    folder.mkdir(exist_ok=True)
    if not (folder / "go.mod").exists():
        (folder / "go.mod").write_text("module jaeger-build\n\ngo 1.24\n")
    sys.stderr.write(f"\nbuilding Jaeger {VERSION} into {cache}, once; this takes several minutes\n")
    aside = binary.with_name(f"{binary.name}.{os.getpid()}")
    for command in ([go, "get", "-tool", f"{PROGRAM}@{VERSION}"], [go, "build", "-o", str(aside), PROGRAM]):
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
        )
        if done.returncode:
            pytest.skip(f"Jaeger cannot be built here: {' '.join(command[:3])} says {done.stderr[-300:]}")
    aside.replace(binary)


@contextmanager
def running_jaeger(folder: Path) -> Iterator[tuple[str, str]]:
    """(OTLP/gRPC address, URL of the query API) of a Jaeger that keeps its spans in memory; it serves when this returns."""
    binary = jaeger_binary()
    otlp, http, grpc = free_ports(3)
    config = folder / "jaeger.yaml"
    config.write_text(_CONFIG.format(otlp=otlp, http=http, grpc=grpc))
    with (folder / "jaeger.log").open("wb") as log:
        process = subprocess.Popen([binary, "--config", config], stdout=log, stderr=log)
        try:
            yield f"127.0.0.1:{otlp}", f"http://127.0.0.1:{http}"
        finally:
            process.kill()
            process.wait()
