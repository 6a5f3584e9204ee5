"""Settings: frozen dataclasses, read once in a `__main__` from options and environment, validated, passed down.

Each field becomes an option: `lease_duration_seconds` is `--lease-duration-seconds`, and, where the option is absent,
ORRERY_SCHEDULER_LEASE_DURATION_SECONDS for the process `scheduler`. A field's metadata holds its help. Types: str, int,
float, bool (yes/no), and tuple[str, ...] (comma-separated). Relations between fields are checked by the dataclass's own
`__post_init__`, which raises SettingsError.
"""

import argparse
import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

S = TypeVar("S")
# Kept here, so that settings import nothing of telemetry; services.runtime.sampling says what each means.
TRACE_RULES = ("failed", "fenced", "slow", "preempting")
LOG_LEVELS = ("debug", "info", "warning", "error")


class SettingsError(ValueError):
    """A value or a relation of values that cannot be; the message says what would be right."""


def option(help_text: str, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field with the help text that `--help` prints."""
    if default is dataclasses.MISSING:
        return field(metadata={"help": help_text})
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSettings:
    """What every process has."""

    name: str = option("name of this process, unique in the mesh; stands in logs, spans and identities")
    listen: str = option("host:port to serve on; port 0 takes any free one", "127.0.0.1:0")
    log_level: str = option(f"least severe level that is logged: {', '.join(LOG_LEVELS)}", "info")
    trace_store: str = option("path of the span database; spans go there when no OTLP endpoint is given", "")
    otlp_endpoint: str = option("host:port of an OTLP/gRPC collector, such as Jaeger's 4317", "")
    trace_ratio: float = option("share of new traces that are kept, 0 to 1; a caller's decision is followed", 1.0)
    trace_always: tuple[str, ...] = option(
        f"what is kept whatever the ratio says, of {', '.join(TRACE_RULES)}; or none", TRACE_RULES
    )
    trace_slow_seconds: float = option("from when a step counts as slow", 1.0)

    def __post_init__(self) -> None:
        if not self.name:
            raise SettingsError("--name must not be empty")
        if self.log_level not in LOG_LEVELS:
            raise SettingsError(f"--log-level {self.log_level!r} is none of {', '.join(LOG_LEVELS)}")
        if not 0 <= self.trace_ratio <= 1:
            raise SettingsError(f"--trace-ratio {self.trace_ratio} is not between 0 and 1")
        if unknown := [
            rule for rule in self.trace_always if rule not in TRACE_RULES and self.trace_always != ("none",)
        ]:
            raise SettingsError(
                f"--trace-always {unknown[0]!r} is none of {', '.join(TRACE_RULES)}, and not none alone"
            )
        if self.trace_slow_seconds < 0:
            raise SettingsError(f"--trace-slow-seconds {self.trace_slow_seconds} must not be negative")
        check_address("--listen", self.listen)


def check_address(what: str, text: str) -> None:
    """Raises SettingsError unless `text` is host:port."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise SettingsError(f"{what} {text!r} is not host:port, such as 127.0.0.1:6443")


def load_settings(cls: type[S], argv: Sequence[str], environ: Mapping[str, str], *, prog: str, description: str) -> S:
    """Builds `cls` from options, then environment, then defaults. Prints a sentence and exits with 2 when that fails."""
    assert dataclasses.is_dataclass(cls)
    prefix = f"ORRERY_{prog.rpartition('.')[2].upper()}_"
    parser = argparse.ArgumentParser(
        prog=f"python -m {prog}",
        description=description,
        epilog=f"Each option can be given as {prefix}<OPTION> in the environment; the command line wins.",
        allow_abbrev=False,
    )
    types = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        default = "" if item.default is dataclasses.MISSING else f" (default: {_show(item.default)})"
        parser.add_argument(
            "--" + item.name.replace("_", "-"),
            dest=item.name,
            metavar=_metavar(types[item.name]),
            help=str(item.metadata.get("help", "")).replace("%", "%%") + default.replace("%", "%%"),
        )
    given = vars(parser.parse_args(list(argv)))
    values: dict[str, Any] = {}
    for item in dataclasses.fields(cls):
        text = given[item.name]
        source = "--" + item.name.replace("_", "-")
        if text is None and (text := environ.get(prefix + item.name.upper())) is not None:
            source = prefix + item.name.upper()
        if text is not None:
            try:
                values[item.name] = _convert(types[item.name], text)
            except ValueError as error:
                parser.error(f"{source} {text!r}: {error}")
        elif item.default is dataclasses.MISSING:
            parser.error(f"--{item.name.replace('_', '-')} is required: {item.metadata.get('help', '')}")
    try:
        return cls(**values)
    except SettingsError as error:
        parser.error(str(error))


def _show(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "none"
    return "none" if default == "" else str(default)


def _metavar(kind: Any) -> str:
    if kind is int or kind is float:
        return "N"
    return {bool: "yes|no", str: "TEXT"}.get(kind, "A,B,...")


def _convert(kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() in ("yes", "true", "1", "on"):
            return True
        if text.lower() in ("no", "false", "0", "off"):
            return False
        raise ValueError("wanted yes or no")
    if kind is int or kind is float:
        try:
            number = kind(text)
        except ValueError:
            raise ValueError(f"wanted {'a whole number' if kind is int else 'a number'}") from None
        if kind is float and not abs(number) < float("inf"):
            raise ValueError("wanted a finite number")
        return number
    if kind is str:
        return text
    return tuple(part.strip() for part in text.split(",") if part.strip())
