"""`orrery demo`: a mesh of its own, a small GPU cluster, the example manifests, and what became of them.

Everything is the real thing, in a temporary state folder: etcd, two API servers, two schedulers, simulated machines. What
is started is stopped again on every way out: success, failure, Ctrl-C, SIGTERM. The spans are kept aside, so that the
trace can be read afterwards.
"""

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.lab.connect import wait_healthy
from services.lab.demo_cluster import DemoCluster, PodRun
from services.lab.demo_report import print_report
from services.lab.errors import LabError
from services.lab.machines import FLEET_DEFAULT
from services.lab.state import MeshFolder, MeshOptions, home_folder
from services.lab.supervisor import Supervisor, plan

MESH_NAME = "demo"
OPTIONS = MeshOptions(apiservers=2, schedulers=2, fleet=FLEET_DEFAULT, fsync=False)
TRACES_KEPT = "demo-traces.sqlite"


def examples_folder() -> Path:
    """The manifests: beside the package in a wheel, at the top of the repository otherwise. Raises LabError."""
    for folder in (Path(__file__).parent / "examples", Path(__file__).parents[2] / "examples"):
        if folder.is_dir():
            return folder
    raise LabError("the example manifests are not installed; run the demo from a clone of the repository")


class Demo:
    """One run. `keep` leaves the mesh running under the name "demo"."""

    def __init__(self, out: Any, *, keep: bool = False) -> None:
        self._out = out
        self._keep = keep
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """A step that is done, with the time since the beginning."""
        self._out.print(f"[dim]{time.monotonic() - self._began:5.1f} s[/]  {text}", soft_wrap=True)

    def run(self) -> None:
        """Raises LabError when something did not work; nothing is left running then either."""
        with self._place() as folder, stopping_on_signals():
            supervisor = Supervisor(folder)
            record = plan(folder.name, OPTIONS)
            kept = False
            try:
                self.say("starting etcd, 2 API servers, 2 schedulers, kubelet-sim")
                with self._out.status("starting"):
                    record = supervisor.start_missing(record)
                    asyncio.run(wait_healthy(supervisor, record, lambda name: self.say(f"{name} is healthy")))
                pods = asyncio.run(DemoCluster(folder, self.say).play(examples_folder()))
                self._report(folder, pods)
                kept = self._keep
            finally:
                if not kept:
                    with signals_ignored():
                        supervisor.stop(folder.read() or record, discard=True)
        if kept:
            self._out.print("\nthe mesh goes on: orrery --context demo status; orrery --context demo down --purge")

    def _report(self, folder: MeshFolder, pods: list[PodRun]) -> None:
        print_report(self._out, folder, pods, self._keep_traces(folder))
        self._out.print(f"\n[bold]done[/] in {time.monotonic() - self._began:.1f} s")

    def _keep_traces(self, folder: MeshFolder) -> Path:
        """Where the spans can be read once the demo is over."""
        if self._keep:
            return folder.traces_path
        home = home_folder()
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            home = Path(tempfile.gettempdir())
        kept = home / TRACES_KEPT
        for suffix in ("", "-wal", "-shm"):
            kept.with_name(kept.name + suffix).unlink(missing_ok=True)
        backup(folder.traces_path, kept)
        return kept

    @contextmanager
    def _place(self) -> Iterator[MeshFolder]:
        """The folder of the demo's mesh: a temporary one, unless it is kept."""
        if self._keep:
            folder = MeshFolder(home_folder(), MESH_NAME)
            with folder.lock():
                record = folder.read()
                if record is not None and record.running:
                    raise LabError("mesh 'demo' is already up; look at it with: orrery --context demo status")
                folder.purge()
                folder.make()
                yield folder
            return
        home = Path(tempfile.mkdtemp(prefix="orrery-demo-"))
        try:
            folder = MeshFolder(home, MESH_NAME)
            folder.make()
            yield folder
        finally:
            with signals_ignored():
                shutil.rmtree(home, ignore_errors=True)


def backup(source: Path, target: Path) -> None:
    """A consistent copy of a SQLite file that others may be writing."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(source)) as reading, closing(sqlite3.connect(target)) as writing:
        reading.backup(writing)


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that it cleans up; and so does SIGINT, which a shell's background
    job would ignore.
    """
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: object) -> None:
    # Through the handler of Ctrl-C: asyncio's own while its loop runs.
    signal.raise_signal(signal.SIGINT)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """A second Ctrl-C must not stop the cleaning up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
