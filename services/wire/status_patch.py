"""A merge patch of an object's status."""

import json
from collections.abc import Callable
from typing import Any

from services.wire.codec import FieldErrors, from_json, to_json

Merge = Callable[[Any, Any], Any]


class PatchError(ValueError):
    """The patch is no JSON object with `status` alone, or its result is no status; `errors` are (path, message)."""

    def __init__(self, message: str, errors: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.errors = errors


def patch_status_of(message: Any, patch: bytes, merge: Merge) -> Any:
    """A copy of `message` with `patch` merged into its status by `merge(target, patch)`.

    Raises:
        PatchError.
    """
    try:
        parsed = json.loads(patch)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PatchError(str(error)) from error
    if not isinstance(parsed, dict) or set(parsed) != {"status"}:
        raise PatchError('a status patch is {"status": {...}} and nothing else')
    merged = merge(to_json(message.status), parsed["status"])
    new = type(message)()
    new.CopyFrom(message)
    try:
        new.status.CopyFrom(from_json(merged, type(message.status)))
    except FieldErrors as error:
        errors = tuple((f"status.{path}", why) for path, why in error.errors)
        raise PatchError("; ".join(f"{path}: {why}" for path, why in errors), errors) from error
    return new
