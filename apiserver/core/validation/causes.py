"""Causes in Kubernetes' words."""

from collections.abc import Iterable

from services.model.errors import Cause


def required(field: str, why: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", f"Required value{': ' + why if why else ''}")


def invalid(field: str, value: object, why: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause(field, "FieldValueInvalid", f"Invalid value: {shown}: {why}")


def duplicate(field: str, value: object) -> Cause:
    return Cause(field, "FieldValueDuplicate", f'Duplicate value: "{value}"')


def unsupported(field: str, value: str, supported: Iterable[str]) -> Cause:
    listed = ", ".join(f'"{item}"' for item in supported)
    return Cause(field, "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {listed}')


def forbidden(field: str, why: str) -> Cause:
    return Cause(field, "FieldValueForbidden", f"Forbidden: {why}")


def one_of(field: str, value: str, supported: tuple[str, ...], *, empty: bool = True) -> list[Cause]:
    """Nothing when `value` is among `supported`, or empty where that is allowed."""
    if value in supported or (empty and not value):
        return []
    return [unsupported(field, value, supported)] if value else [required(field)]
