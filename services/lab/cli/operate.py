"""`orrery kill`, `logs`, `env`, `doctor`."""

import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from services.lab.cli.root import Selection, console, context_option, run
from services.lab.errors import LabError, MeshDown
from services.lab.state import MeshFolder, MeshRecord, ProcessRecord

if TYPE_CHECKING:
    from typing import BinaryIO

FOLLOW_POLL_SECONDS = 0.2
DEATH_SECONDS_MAX = 2.0


@click.command()
@context_option
@click.argument("process")
@click.option("--leader", is_flag=True, help="With PROCESS 'scheduler': the one that leads at this moment.")
@click.option("--signal", "signal_name", default="KILL", show_default=True, help="KILL, TERM, STOP, CONT, ...")
@click.pass_context
def kill(ctx: click.Context, process: str, leader: bool, signal_name: str) -> None:
    """Send SIGKILL to a process of the mesh, such as scheduler-0, apiserver-1, kubelet-sim-0, etcd.

    `orrery up` afterwards starts what is missing again.
    """
    number = _signal(signal_name)
    folder = ctx.ensure_object(Selection).folder
    record = folder.read()
    if record is None or not record.running:
        raise MeshDown(folder.name)
    target = run(_leader(folder, record, process)) if leader else _target(record, process)
    if target.container:
        _signal_container(target, number)
        return
    found = target.find()
    if found is None:
        raise LabError(f"{target.name} does not run; start what is missing with: orrery up")
    if target.program == "etcd" and number in (signal.SIGKILL, signal.SIGABRT):
        from services.lab.etcd import find_etcd, refuse_if_unsafe_to_kill

        refuse_if_unsafe_to_kill(find_etcd().version)
    found.send_signal(number)
    if number == signal.SIGKILL:
        _wait_dead(target)
    click.echo(f"sent {number.name} to {target.name} (pid {target.pid})")


def _signal_container(target: ProcessRecord, number: signal.Signals) -> None:
    """Docker's own kill, so that Docker knows that it was meant and does not start the container again."""
    from services.lab.compose import REMOTE, docker

    if target.container == REMOTE:
        raise LabError(f"from inside the mesh nobody can be killed; on the host: docker kill {target.name}")
    docker("kill", "--signal", number.name, target.container)
    click.echo(f"sent {number.name} to {target.name} (container {target.container}); again: docker compose up -d")


def _signal(name: str) -> signal.Signals:
    wanted = name.upper().removeprefix("SIG")
    try:
        return signal.Signals(int(wanted)) if wanted.isdigit() else signal.Signals[f"SIG{wanted}"]
    except (KeyError, ValueError):
        raise click.UsageError(f"{name!r} is no signal; write KILL, TERM, STOP, CONT, or a number") from None


def _target(record: MeshRecord, name: str) -> ProcessRecord:
    """`name` may be a program's when the mesh has just one process of it."""
    several = record.of(name)
    if len(several) > 1:
        names = ", ".join(process.name for process in several)
        also = ", or add --leader" if name == "scheduler" else ""
        raise LabError(f"there are several of {name!r}: name one of {names}{also}")
    return several[0] if several else record.process(name)


async def _leader(folder: MeshFolder, record: MeshRecord, process: str) -> ProcessRecord:
    from services.lab.connect import leader, session

    if process != "scheduler":
        raise click.UsageError("--leader goes with 'scheduler': orrery kill scheduler --leader")
    async with session(folder) as client:
        leading = await leader(client.transport, record.of("scheduler"))
    if leading is None:
        raise LabError("no scheduler leads at this moment; look with: orrery status")
    return leading


def _wait_dead(target: ProcessRecord) -> None:
    deadline = time.monotonic() + DEATH_SECONDS_MAX
    while target.alive() and time.monotonic() < deadline:
        time.sleep(0.01)


@click.command()
@context_option
@click.argument("process")
@click.option("--follow", "-f", is_flag=True, help="Go on printing what is written, until Ctrl-C.")
@click.option("--tail", type=click.IntRange(0), default=50, show_default=True, help="Lines from the end; 0 for all.")
@click.option("--json", "raw", is_flag=True, help="Lines as they are: one JSON object each.")
@click.pass_context
def logs(ctx: click.Context, process: str, follow: bool, tail: int, raw: bool) -> None:
    """Print the log of a process of the mesh."""
    folder = ctx.ensure_object(Selection).folder
    record = folder.read()
    if record is None:
        raise MeshDown(folder.name)
    target = _target(record, process)
    if target.container:
        _container_logs(target, follow=follow, tail=tail, raw=raw)
        return
    name = target.name
    path = folder.log_path(name)
    if not path.exists():
        raise LabError(f"{name} has written no log yet ({path})")
    with path.open("rb") as log:
        lines = log.read().decode(errors="replace").splitlines()
        for line in lines[-tail:] if tail else lines:
            _say(line, raw=raw)
        if follow:
            _follow(log, raw=raw)


def _container_logs(target: ProcessRecord, *, follow: bool, tail: int, raw: bool) -> None:
    import subprocess

    command = ["docker", "logs", "--tail", str(tail) if tail else "all", target.container]
    if follow:
        command.insert(2, "--follow")
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as reading:
            for line in reading.stdout or ():
                _say(line.rstrip("\n"), raw=raw)
    except FileNotFoundError:
        raise LabError(f"there is no docker command here to read the log of {target.name} with") from None


def _say(line: str, *, raw: bool) -> None:
    from services.lab.supervisor import readable

    click.echo(line if raw else readable(line))


def _follow(log: "BinaryIO", *, raw: bool) -> None:
    """Prints whole lines as they come; ends by Ctrl-C."""
    rest = b""
    while True:
        rest += log.read()
        *whole, rest = rest.split(b"\n")
        for line in whole:
            _say(line.decode(errors="replace"), raw=raw)
        sys.stdout.flush()
        time.sleep(FOLLOW_POLL_SECONDS)


@click.command()
@context_option
@click.pass_context
def env(ctx: click.Context) -> None:
    """Print shell settings for clients of the mesh; use as: eval "$(orrery env)"."""
    folder = ctx.ensure_object(Selection).folder
    record = folder.read()
    if record is None:
        raise MeshDown(folder.name)
    settings = {
        "ORRERY_CONTEXT": folder.name,
        "ORRERY_APISERVERS": ",".join(record.addresses("apiserver")),
        "ORRERY_SCHEDULERS": ",".join(record.addresses("scheduler")),
        "ORRERY_ETCD": ",".join(record.addresses("etcd")),
        **_trace_settings(folder, record),
        "ETCDCTL_API": "3",
        "ETCDCTL_ENDPOINTS": ",".join(record.addresses("etcd")),
    }
    if home := os.environ.get("ORRERY_HOME"):
        settings["ORRERY_HOME"] = str(Path(home).expanduser().absolute())
    for name, value in settings.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _trace_settings(folder: MeshFolder, record: MeshRecord) -> dict[str, str]:
    from services.lab.compose import ComposeFolder

    if isinstance(folder, ComposeFolder):
        return {"ORRERY_TRACE_QUERY": folder.trace_query_url()}
    settings = {"ORRERY_TRACE_STORE": str(folder.traces_path)}
    for store in record.of("tracestore"):
        settings["ORRERY_TRACE_QUERY"] = f"http://{store.host}:{store.peer_port}"
    return settings


@click.command()
@context_option
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Look at this machine: Python, etcd, ports, file limits, disk, state; and say what to do."""
    from services.lab.doctor import examine

    out = console()
    findings = examine(ctx.ensure_object(Selection).folder)
    for finding in findings:
        mark = {True: "[green]✓[/]", None: "[yellow]![/]", False: "[red]✗[/]"}[finding.ok]
        out.print(f"{mark} [bold]{finding.subject}[/]: {finding.says}", soft_wrap=True)
        if finding.advice:
            out.print(f"    {finding.advice}", soft_wrap=True)
    if any(finding.ok is False for finding in findings):
        raise LabError("this machine is not ready; see ✗ above")
