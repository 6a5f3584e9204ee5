"""Errors with the path of the field: `spec.containers[0].resorces: unknown field; did you mean "resources"?`."""

import re
from typing import NamedTuple

ERRORS_MAX = 50
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_KEY_SHOWN_MAX = 80


class MapKey(str):
    """A step of a path that is a key of a map (`metadata.labels[app]`), not the name of a field."""

    __slots__ = ()


Steps = tuple[str | int, ...]


class FieldError(NamedTuple):
    path: str
    message: str


class FieldErrors(ValueError):
    """All that is wrong with one object, at most ERRORS_MAX. `steps` has the path of each error once more, as the keys
    and indices that lead to it.
    """

    def __init__(self, errors: tuple[FieldError, ...], steps: tuple[Steps, ...]) -> None:
        super().__init__("; ".join(f"{path}: {message}" if path else message for path, message in errors))
        self.errors = errors
        self.steps = steps


def path_text(steps: Steps) -> str:
    """`spec.containers[0].env`; a map's key and an odd name stand in brackets."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif isinstance(step, MapKey) or not _PLAIN.fullmatch(step):
            cut = step if len(step) <= _KEY_SHOWN_MAX else step[:_KEY_SHOWN_MAX] + "..."
            text += f"[{cut if cut.isprintable() else ascii(cut)}]"
        else:
            text += f".{step}" if text else step
    return text
