"""One compose project of the tests' own, on ports of its own, beside any other that runs."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.lab.etcd import free_ports
from tests.shared_data import ROOT

PORTS = (
    "ORRERY_APISERVER_0_PORT",
    "ORRERY_APISERVER_1_PORT",
    "ORRERY_SCHEDULER_0_PORT",
    "ORRERY_SCHEDULER_1_PORT",
    "ORRERY_KUBELET_PORT",
    "ORRERY_ETCD_PORT",
    "ORRERY_OTLP_PORT",
    "ORRERY_TRACES_PORT",
)
COMMAND_SECONDS_MAX = 300
WAIT_SECONDS_MAX = 90.0


@dataclass(frozen=True)
class Project:
    """`run` and its like run commands from the repository's root, in the project's environment."""

    name: str
    environment: Mapping[str, str]

    def run(self, *command: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}\n{done.stderr}"
        return done

    def compose(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return self.run("docker", "compose", *arguments, check=check)

    def orrery(self, *arguments: str, check: bool = True) -> str:
        return self.run(".venv/bin/orrery", "--context", "compose", *arguments, check=check).stdout

    def container(self, service: str) -> str:
        return f"{self.name}-{service}-1"

    def inspect(self, service: str) -> Any:
        return json.loads(self.run("docker", "inspect", self.container(service)).stdout)[0]

    def log(self, service: str) -> str:
        done = self.run("docker", "logs", self.container(service))
        return done.stdout + done.stderr

    def is_well(self) -> bool:
        """Docker calls every container healthy, and so does each process."""
        states = self.compose("ps", "--all", "--format", "{{.Health}}").stdout.split()
        status = self.run(".venv/bin/orrery", "--context", "compose", "status", check=False)
        return set(states) == {"healthy"} and status.returncode == 0

    @staticmethod
    def wait_until(what: str, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not reached():
            assert time.monotonic() < deadline, f"{what}: not within {WAIT_SECONDS_MAX:.0f} s"
            time.sleep(0.3)

    def serves(self, service: str, port: int) -> bool:
        """What the container's own health check says now."""
        probe = ("python", "-m", "services.runtime.probe", f"127.0.0.1:{port}")
        return self.run("docker", "exec", self.container(service), *probe, check=False).returncode == 0


def new_project() -> Project:
    """Not started; without Jaeger, whose image not every machine can have."""
    name = "orrery-test"
    environment = {
        **os.environ,
        "COMPOSE_PROJECT_NAME": name,
        "COMPOSE_PROFILES": "",
        "ORRERY_IMAGE": "orrery:test",
        **{variable: str(port) for variable, port in zip(PORTS, free_ports(len(PORTS)), strict=True)},
    }
    return Project(name, environment)
