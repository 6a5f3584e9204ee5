"""`orrery up`, `status`, `down`."""

import sys
from typing import Any

import click

from services.lab.cli.root import Selection, console, context_option, run
from services.lab.errors import LabError
from services.lab.state import MeshFolder, MeshOptions, MeshRecord, home_folder, meshes

PROCESSES_MAX = 9


@click.command()
@context_option
@click.option("--nodes", type=click.IntRange(0, 20_000), help="Simulated machines in all, spread over the shapes.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME[=COUNT]", help="A machine shape; repeatable. Default: a mix."
)
@click.option("--apiservers", type=click.IntRange(1, PROCESSES_MAX), default=2, show_default=True)
@click.option("--schedulers", type=click.IntRange(0, PROCESSES_MAX), default=2, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the simulated machines.")
@click.option("--fsync/--no-fsync", default=True, show_default=True, help="Whether etcd waits for the disk.")
@click.option(
    "--scheduler-config",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="A KubeSchedulerConfiguration for the schedulers; they watch the file.",
)
@click.option(
    "--forward", default="", metavar="HOST:PORT", help="An OTLP collector, such as Jaeger, that gets all spans too."
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.pass_context
def up(
    ctx: click.Context,
    nodes: int | None,
    shapes: tuple[str, ...],
    apiservers: int,
    schedulers: int,
    seed: int,
    fsync: bool,
    scheduler_config: str | None,
    forward: str,
    log_level: str,
) -> None:
    """Start a mesh in the background, or what is missing of it.

    It survives this shell. Ports are chosen free on 127.0.0.1 and kept. After any process was killed, `orrery up` again
    continues where it was; the options then are those of the first time.
    """
    from services.lab.machines import fleet

    folder = ctx.ensure_object(Selection).folder
    asked = MeshOptions(
        apiservers=apiservers,
        schedulers=schedulers,
        fleet=fleet(shapes, nodes),
        seed=seed,
        fsync=fsync,
        scheduler_config=scheduler_config or "",
        forward=_address(forward),
        log_level=log_level,
    )
    given = [
        name
        for name in (
            "nodes",
            "shapes",
            "apiservers",
            "schedulers",
            "seed",
            "fsync",
            "scheduler_config",
            "forward",
            "log_level",
        )
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    with folder.lock():
        bring_up(folder, asked, options_given=bool(given))


def _address(text: str) -> str:
    from services.runtime.settings import SettingsError, check_address

    try:
        if text:
            check_address("--forward", text)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    return text


def bring_up(folder: MeshFolder, asked: MeshOptions, *, options_given: bool) -> MeshRecord:
    """Starts what is missing and waits until all of it is healthy. The caller holds the folder's lock."""
    from services.lab.connect import wait_healthy
    from services.lab.supervisor import ProcessDied, Supervisor, plan

    record = folder.read()
    fresh = record is None or not record.running
    if record is not None and options_given and asked != record.options:
        if not fresh:
            raise LabError(
                f"mesh {folder.name!r} is already up with other options; leave them out to start what is missing, or "
                "begin anew with: orrery down"
            )
        record = plan(folder.name, asked)
    if record is None:
        record = plan(folder.name, asked)
    missing = [process.name for process in record.processes if not process.alive()]
    out = console()
    if not missing:
        out.print(f"mesh [bold]{folder.name}[/] is already up")
    elif not fresh:
        out.print(f"mesh [bold]{folder.name}[/] is already up; starting what is missing: {', '.join(missing)}")
    supervisor = Supervisor(folder)
    try:
        with out.status(f"starting {', '.join(missing) or 'nothing'}") as status:
            record = supervisor.start_missing(record)
            left = set(missing)

            def note(name: str) -> None:
                left.discard(name)
                status.update(f"waiting for {', '.join(sorted(left)) or 'nothing'}")

            run(wait_healthy(supervisor, record, note))
    except (LabError, KeyboardInterrupt) as fault:
        if fresh:
            # Half a mesh helps nobody. One that ran before is left to its owner.
            supervisor.stop(folder.read() or record)
        if isinstance(fault, ProcessDied):
            raise LabError(f"{fault}") from fault
        raise
    print_processes(out, record)
    out.print(
        f"machines: {record.options.fleet or 'none'}\nstate: {folder.path}",
        soft_wrap=True,
    )
    for store in record.of("tracestore"):
        out.print(f"traces: http://{store.host}:{store.peer_port}/api/services (Jaeger's query API)", soft_wrap=True)
    context = "" if folder.name == "default" else f"--context {folder.name} "
    out.print(f'next: orrery {context}apply -f examples · orrery {context}status · eval "$(orrery {context}env)"')
    return record


def print_processes(out: Any, record: MeshRecord) -> None:
    """Where everything listens."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("PROCESS", "PID", "ADDRESS"):
        table.add_column(column)
    for process in record.processes:
        table.add_row(process.name, str(process.pid or "-"), process.address)
    out.print(table)


@click.command()
@context_option
@click.option("--purge", is_flag=True, help="Remove the state too: objects, logs, traces.")
@click.pass_context
def down(ctx: click.Context, purge: bool) -> None:
    """Stop a mesh. Its state stays, and `orrery up` continues there, unless --purge."""
    from services.lab.compose import COMPOSE
    from services.lab.supervisor import Supervisor

    folder = ctx.ensure_object(Selection).folder
    if folder.name != COMPOSE and not folder.path.exists():
        click.echo(f"mesh {folder.name!r} does not exist; there is nothing to stop")
        return
    with folder.lock():
        try:
            record = folder.read()
        except LabError:
            if not purge:
                raise
            record = None
        stopped: list[str] = []
        if record is not None:
            with console(stderr=True).status("stopping") as status:
                stopped = Supervisor(folder, lambda name: status.update(f"stopping {name}")).stop(record, discard=purge)
        if purge:
            folder.purge()
    said = f"stopped {', '.join(stopped)}" if stopped else f"mesh {folder.name!r} was not up"
    click.echo(f"{said}; its state is removed" if purge else said)


@click.command()
@context_option
@click.option("--watch", "-w", is_flag=True, help="Refresh every second until Ctrl-C.")
@click.option("--all", "every", is_flag=True, help="List the meshes of this machine and whether they run.")
@click.pass_context
def status(ctx: click.Context, watch: bool, every: bool) -> None:
    """Show leader, epoch, queues, pods by phase, and each process's health."""
    from services.lab.status import render, take, watch_status

    if every:
        for name in meshes(home_folder()):
            record = MeshFolder(home_folder(), name).read()
            running = len(record.running) if record else 0
            click.echo(f"{name}  {f'{running} processes run' if running else 'down'}")
        return
    folder = ctx.ensure_object(Selection).folder
    out = console()
    if watch:
        run(watch_status(folder, out))
        return
    taken = run(take(folder))
    out.print(render(taken))
    if not taken.healthy:
        sys.exit(1)
