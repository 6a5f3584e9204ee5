"""`orrery scheduler validate`, `config`, `reload`: KubeSchedulerConfiguration files."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from services.lab.cli.root import Selection, context_option, run
from services.lab.errors import LabError
from services.lab.state import MeshFolder

if TYPE_CHECKING:
    from protos.orrery.v1.scheduler_pb2 import SchedulerConfigurationStatus
    from scheduler.configuration.types import ProfileConfiguration


@click.group()
def scheduler() -> None:
    """Validate a KubeSchedulerConfiguration, show the one in force, have it read again."""


@scheduler.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def validate(file: Path) -> None:
    """Check a configuration file, and show what it comes to: the plugins of each point, in order.

    Exit code 1, with each wrong field's line and path, when it is not good.
    """
    from scheduler.configuration.read import read_configuration
    from scheduler.configuration.types import ConfigurationErrors

    try:
        configuration = read_configuration(file.read_text(encoding="utf-8"), str(file))
    except (ConfigurationErrors, UnicodeDecodeError) as error:
        count = len(error.problems) if isinstance(error, ConfigurationErrors) else 1
        click.echo(str(error), err=True)
        raise LabError(f"{count} problem{'s' if count > 1 else ''}") from None
    for profile in configuration.profiles:
        _print_profile(profile.scheduler_name, _points(profile))
        for name, why in profile.without_effect.items():
            click.echo(f"  {name} has no effect: {why}")
    for note in configuration.notes:
        click.echo(f"no effect: {note}")
    click.echo(
        f"backoff: {configuration.backoff_first_seconds:g} s to {configuration.backoff_seconds_max:g} s\n"
        f"{file} is good: {len(configuration.profiles)} profile{'s' if len(configuration.profiles) > 1 else ''}"
    )


def _points(profile: "ProfileConfiguration") -> list[tuple[str, list[tuple[str, int]]]]:
    return [
        (point, [(name, profile.weights.get(name, 0) if point == "score" else 0) for name in names])
        for point, names in profile.points.items()
    ]


def _print_profile(name: str, points: list[tuple[str, list[tuple[str, int]]]]) -> None:
    click.echo(f"profile {name}")
    for point, plugins in points:
        if plugins:
            said = ", ".join(f"{plugin} x{weight}" if weight else plugin for plugin, weight in plugins)
            click.echo(f"  {point:<11} {said}")


@scheduler.command()
@context_option
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show the configuration in force in each running scheduler."""
    _tell(run(_ask(ctx.ensure_object(Selection).folder, "GetConfiguration")))


@scheduler.command(name="reload")
@context_option
@click.pass_context
def reload_configuration(ctx: click.Context) -> None:
    """Have each scheduler read its file again at once. Exit code 1 where it is wrong; the last good one stays."""
    _tell(run(_ask(ctx.ensure_object(Selection).folder, "ReloadConfiguration")))


async def _ask(folder: MeshFolder, method: str) -> "list[tuple[str, SchedulerConfigurationStatus | None]]":
    from services.lab.connect import configuration_of, session

    async with session(folder, degraded=True) as client:
        return [
            (process.name, await configuration_of(client.transport, process, method))
            for process in client.record.of("scheduler")
        ]


def _tell(answers: "list[tuple[str, SchedulerConfigurationStatus | None]]") -> None:
    shown: set[bytes] = set()
    wrong = 0
    for name, told in answers:
        if told is None:
            click.echo(f"{name} does not answer")
            wrong += 1
            continue
        click.echo(f"{name}: {told.source or 'the default configuration'}{f', {told.hash}' if told.hash else ''}")
        for problem in told.problems:
            click.echo(f"  wrong now, an older one is in force: {problem}", err=True)
        wrong += bool(told.problems)
        profiles = b"".join(profile.SerializeToString() for profile in told.profiles)
        if profiles in shown:
            continue
        shown.add(profiles)
        for profile in told.profiles:
            points = [(at.point, [(item.name, item.weight) for item in at.plugins]) for at in profile.points]
            _print_profile(profile.scheduler_name, points)
        for note in told.notes:
            click.echo(f"no effect: {note}")
    if wrong or not answers:
        raise LabError(f"{wrong} of {len(answers)} schedulers do not run what their file says")
