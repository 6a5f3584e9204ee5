"""`orrery storm`, `wait`, `leader`: what a rehearsal of a failure is made of."""

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from services.lab.cli.root import Selection, context_option, run
from services.lab.errors import LabError, MeshDown
from services.lab.state import MeshFolder

if TYPE_CHECKING:
    from services.lab.storm import Followed, StormOptions

PODS_MAX = 50_000
POLL_SECONDS = 0.2
SAY_SECONDS = 1.0

_namespace = click.option("--namespace", "-n", default="default", show_default=True)
_timeout = click.option(
    "--timeout", type=click.FloatRange(0), default=120.0, show_default=True, help="Seconds, then exit code 1."
)


@click.command()
@context_option
@click.option("--pods", type=click.IntRange(1, PODS_MAX), default=2_000, show_default=True)
@click.option("--app", default="storm", show_default=True, help="Pods are APP-0, APP-1, ..., with the label app=APP.")
@_namespace
@click.option("--cpu", default="100m", show_default=True, help="What each pod requests.")
@click.option("--memory", default="128Mi", show_default=True)
@click.option("--gpus", type=click.IntRange(0), default=0, show_default=True, help="Whole GPUs of each pod.")
@click.option("--wait/--no-wait", default=True, help="Whether to wait until all are bound.")
@_timeout
@click.pass_context
def storm(
    ctx: click.Context,
    pods: int,
    app: str,
    namespace: str,
    cpu: str,
    memory: str,
    gpus: int,
    wait: bool,
    timeout: float,
) -> None:
    """Create many equal pods at once and wait until each is bound.

    Servers and schedulers may be killed meanwhile. Remove the pods with: orrery delete pods -l app=APP --now
    """
    from services.lab.storm import StormOptions
    from services.model.quantity import QuantityError, parse_quantity

    for option, text in (("--cpu", cpu), ("--memory", memory)):
        try:
            parse_quantity(text)
        except QuantityError as error:
            raise click.UsageError(f"{option} {text!r}: {error}") from None
    options = StormOptions(app, namespace, pods, cpu, memory, gpus)
    run(_storm(ctx.ensure_object(Selection).folder, options, timeout if wait else 0.0))


async def _storm(folder: MeshFolder, options: "StormOptions", timeout_seconds: float) -> None:
    from services.lab.connect import session
    from services.lab.storm import LABEL_APP, create_storm, following

    async with session(folder, traced=True, timeout_seconds=20.0) as client:
        async with following(client, options.namespace, f"{LABEL_APP}={options.name}") as followed:
            began = client.clock.monotonic()
            saying = asyncio.ensure_future(_say(followed, options.pods))
            try:
                result = await create_storm(client, options, lambda _count: None)
                if timeout_seconds:
                    await _reach(followed, "bound", options.pods, timeout_seconds)
            finally:
                saying.cancel()
            seconds = client.clock.monotonic() - began
        click.echo(f"{result.created:,} pods created" + (f", {result.existed:,} were there" if result.existed else ""))
        if timeout_seconds:
            click.echo(f"{followed.bound:,} of {options.pods:,} bound, {seconds:.1f} s")


async def _say(followed: "Followed", total: int) -> None:
    """A line a second while it changes, on standard error."""
    last = -1
    while True:
        await asyncio.sleep(SAY_SECONDS)
        if followed.bound != last:
            last = followed.bound
            click.echo(f"{len(followed.pods):,} created, {last:,} of {total:,} bound", err=True)


async def _reach(followed: "Followed", what: str, count: int, timeout_seconds: float) -> None:
    """Returns once so many pods are bound, or run. Raises LabError after `timeout_seconds`."""
    try:
        async with asyncio.timeout(timeout_seconds):
            await followed.wait(lambda: getattr(followed, what) >= count)
    except TimeoutError:
        raise LabError(
            f"after {timeout_seconds:.0f} s {getattr(followed, what):,} of {count:,} pods are {what}; why the others "
            "are not, `orrery explain pod/NAME` says"
        ) from None


@click.command()
@context_option
@click.option("--selector", "-l", default="", metavar="SELECTOR", help="Pods with these labels; all by default.")
@_namespace
@click.option("--for", "what", type=click.Choice(["bound", "running"]), default="running", show_default=True)
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="How many of them.")
@_timeout
@click.pass_context
def wait(ctx: click.Context, selector: str, namespace: str, what: str, count: int, timeout: float) -> None:
    """Wait until so many pods are bound, or run."""
    run(_wait(ctx.ensure_object(Selection).folder, selector, namespace, what, count, timeout))


async def _wait(
    folder: MeshFolder, selector: str, namespace: str, what: str, count: int, timeout_seconds: float
) -> None:
    from services.lab.connect import session
    from services.lab.storm import following

    async with session(folder) as client, following(client, namespace, selector) as followed:
        await _reach(followed, what, count, timeout_seconds)
        click.echo(f"{getattr(followed, what):,} pods are {what}")


@click.command()
@context_option
@click.option("--other-than", metavar="NAME", default="", help="Wait until a scheduler leads that is not NAME.")
@_timeout
@click.pass_context
def leader(ctx: click.Context, other_than: str, timeout: float) -> None:
    """Print the name of the scheduler that leads, once one does."""
    name = run(_leader(ctx.ensure_object(Selection).folder, other_than, timeout))
    if name is None:
        also = f" other than {other_than}" if other_than else ""
        raise LabError(f"for {timeout:.0f} s no scheduler{also} leads; look with: orrery status")
    click.echo(name)
    sys.stdout.flush()


async def _leader(folder: MeshFolder, other_than: str, timeout_seconds: float) -> str | None:
    """Asks each scheduler, but for the one that is not wanted: a paused one keeps its callers waiting."""
    from services.lab.connect import leader as find_leader
    from services.lab.connect import session

    async with session(folder, degraded=True) as client:
        deadline = client.clock.monotonic() + timeout_seconds
        while True:
            record = folder.read()
            if record is None:
                raise MeshDown(folder.name)
            asked = [process for process in record.of("scheduler") if process.name != other_than and process.alive()]
            leading = await find_leader(client.transport, asked)
            if leading is not None:
                return leading.name
            if client.clock.monotonic() > deadline:
                return None
            await client.clock.sleep(POLL_SECONDS)
