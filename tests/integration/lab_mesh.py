"""The `orrery` command as a person runs it: a process of its own, with a state folder of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from services.lab.state import MeshFolder, MeshRecord

COMMAND_SECONDS_MAX = 90.0
WAIT_SECONDS_MAX = 40.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


@dataclass(frozen=True)
class Lab:
    """One state folder. `context` is the mesh that commands mean; `more` is added to their environment."""

    home: Path
    context: str = "default"
    more: tuple[tuple[str, str], ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ORRERY_")}
        return {
            **clean,
            "ORRERY_HOME": str(self.home),
            "ORRERY_CONTEXT": self.context,
            "COLUMNS": "160",
            **dict(self.more),
        }

    @property
    def folder(self) -> MeshFolder:
        return MeshFolder(self.home, self.context)

    @property
    def record(self) -> MeshRecord:
        record = self.folder.read()
        assert record is not None
        return record

    def orrery(self, *words: str, stdin: str = "") -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "services.lab", *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS_MAX,
            env=self.environment,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command that goes on while the test does something else."""
        return subprocess.Popen(
            [sys.executable, "-m", "services.lab", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def good(self, *words: str, stdin: str = "") -> str:
        """What a command that has to succeed printed."""
        said = self.orrery(*words, stdin=stdin)
        assert said.code == 0, said.all
        return said.out

    def json(self, *words: str) -> Any:
        return json.loads(self.good("get", *words, "-o", "json"))

    def phase(self, pod: str) -> str:
        return str(self.json("pod", pod)["status"].get("phase", ""))

    def processes(self) -> list[psutil.Process]:
        """Every process of this machine that was started for this state folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("ORRERY_HOME") == str(self.home) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Returns once `holds`; a bound on how long the world may take, not a measurement."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(POLL_SECONDS)


def pod(name: str, *, gpus: int = 0, cpu: str = "100m", labels: str = "{}", extra: str = "") -> str:
    limits = f', limits: {{nvidia.com/gpu: "{gpus}"}}' if gpus else ""
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {labels}}}\nspec:\n"
        f"  containers:\n  - name: main\n    image: app:1\n    resources: {{requests: {{cpu: {cpu}}}{limits}}}\n{extra}"
    )
