"""The root command: which mesh is meant, how errors become a sentence and an exit code, and the list of commands."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import click

from services.lab.errors import LabError
from services.lab.state import MESH_DEFAULT, MeshFolder, home_folder

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130
WIDTH_WHEN_PIPED = 140

# In the order in which `orrery --help` lists them.
SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("A first look", "load", ("demo",)),
    ("The mesh", "mesh", ("up", "status", "down")),
    ("Objects", "objects", ("apply", "get", "delete")),
    ("Understanding", "insight", ("explain", "trace", "traces", "topo", "check")),
    ("Understanding", "conformance", ("conformance",)),
    ("Load and faults", "load", ("replay",)),
    ("Load and faults", "rehearse", ("storm", "wait", "leader")),
    ("Load and faults", "operate", ("kill",)),
    ("This machine", "operate", ("logs", "env", "doctor")),
)
_MODULE_OF = {command: module for _, module, commands in SECTIONS for command in commands}


@dataclass(slots=True)
class Selection:
    """Which mesh the command means."""

    context: str = MESH_DEFAULT

    @property
    def folder(self) -> MeshFolder:
        from services.lab.compose import COMPOSE, ComposeFolder

        return ComposeFolder() if self.context == COMPOSE else MeshFolder(home_folder(), self.context)


class Commands(click.Group):
    """Finds a command's module by its name, lists commands in sections, and turns faults into a sentence and code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_MODULE_OF)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module = _MODULE_OF.get(cmd_name)
        if module is None:
            return None
        command = getattr(import_module(f"services.lab.cli.{module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        titles = dict.fromkeys(title for title, _, _ in SECTIONS)
        for title in titles:
            names = [name for section, _, commands in SECTIONS if section == title for name in commands]
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                assert command is not None
                rows.append((name, command.get_short_help_str(90)))
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        from services.lab.etcd import EtcdError
        from services.model.errors import ApiError

        try:
            return super().invoke(ctx)
        except (LabError, EtcdError) as error:
            fail(str(error))
        except ApiError as error:
            fail(describe(error))
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader of our output has left (`orrery get pods | head`): nothing more to say.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        raise AssertionError("fail() and exit() raise")


def describe(error: Exception) -> str:
    """An `ApiError` as a person reads it: the message, then each wrong field on its own line."""
    causes = getattr(error, "causes", ())
    text = getattr(error, "message", str(error))
    lines = [text, *(f"  {cause.field}: {cause.message}" for cause in causes if cause.message not in text)]
    return "\n".join(lines)


def fail(text: str) -> None:
    """Ends the command with code 1 and one line that says why."""
    raise click.ClickException(text)


def _choose(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        ctx.ensure_object(Selection).context = value
    return value


def context_option(command: F) -> F:
    """Which mesh; given before or after the command's name, the latter wins."""
    option = click.option(
        "--context",
        "--name",
        "context",
        metavar="NAME",
        expose_value=False,
        callback=_choose,
        help="Name of the mesh. Default: $ORRERY_CONTEXT, else 'default'.",
    )
    return option(command)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs one command's asynchronous part; Ctrl-C cancels it and comes out as KeyboardInterrupt."""
    return asyncio.run(work)


def console(*, stderr: bool = False) -> Any:
    """A rich console; wide where nobody watches, so that tables are not cut."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_WHEN_PIPED
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 what was asked holds, 1 it does not or was refused, 2 wrong usage. "
    "State lies under $ORRERY_HOME, else in your user state folder.",
)
@click.option(
    "--context",
    metavar="NAME",
    envvar="ORRERY_CONTEXT",
    default=MESH_DEFAULT,
    show_default=True,
    help="Name of the mesh; several run side by side. 'compose' is the one that Docker Compose runs.",
)
@click.version_option(package_name="orrery-mesh", prog_name="orrery")
@click.pass_context
def orrery(ctx: click.Context, context: str) -> None:
    """A working model of a Kubernetes control plane: real etcd, real gRPC, simulated machines.

    \b
    Try:  orrery demo
    or:   orrery up && orrery apply -f examples && orrery get pods -o wide
          orrery explain pod/NAME; orrery trace pod/NAME; orrery down
    """
    ctx.obj = Selection(context)


def main() -> None:
    """The entry point of the `orrery` command."""
    orrery(prog_name="orrery")
