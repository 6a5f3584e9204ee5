"""`orrery conformance`: our decisions beside those of the real thing."""

from pathlib import Path

import click

from services.lab.cli.root import console

DIFFERENCES_SHOWN = 3
NOT_A_RECORDING = 2


@click.group()
def conformance() -> None:
    """Compare our decisions with those of the real thing."""


@conformance.command()
@click.argument("files", metavar="FILE.jsonl.gz...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--differences",
    type=click.IntRange(min=0),
    default=DIFFERENCES_SHOWN,
    show_default=True,
    help="How many differences to print, each with both answers.",
)
@click.pass_context
def oracle(ctx: click.Context, files: tuple[Path, ...], differences: int) -> None:
    """Decide recorded cluster states and compare with what kube-scheduler 1.36 decided.

    \b
    Exit codes: 0 all that was checked agrees, 1 something differs or nothing was checked,
    2 a file is no recording.
    """
    from services.lab.conformance import NotARecording, check
    from services.lab.conformance_view import report

    try:
        tally = check(files)
    except NotARecording as error:
        click.echo(f"Error: {error}", err=True)
        ctx.exit(NOT_A_RECORDING)
    out = console()
    for part in report(tally, differences):
        out.print(part)
    if not tally.passes:
        ctx.exit(1)
