"""Quantities where they stand for resources."""

from typing import Any

from apiserver.core.validation.causes import invalid
from services.model.errors import Cause
from services.model.names import RESOURCE_CPU
from services.model.quantity import QuantityError, parse_quantity, resource_amount

_FRACTIONS = (RESOURCE_CPU, "memory", "ephemeral-storage", "storage")


def validate_amounts(field: str, amounts: Any) -> list[Cause]:
    """Each is a quantity, not negative, and whole where the resource cannot be split."""
    causes = []
    for name in sorted(amounts):
        path = f"{field}[{name}]"
        text = amounts[name]
        try:
            number = parse_quantity(text)
            resource_amount(name, text)
        except QuantityError as error:
            causes.append(invalid(path, text, str(error)))
            continue
        if number < 0:
            causes.append(invalid(path, text, "must be greater than or equal to 0"))
        elif number.denominator != 1 and name not in _FRACTIONS and not name.startswith("hugepages-"):
            causes.append(invalid(path, text, "must be an integer"))
    return causes


def validate_requirements(field: str, resources: Any) -> list[Cause]:
    """Requests and limits of a container or pod: sound, and no request above its limit."""
    causes = [
        *validate_amounts(f"{field}.limits", resources.limits),
        *validate_amounts(f"{field}.requests", resources.requests),
    ]
    if causes:
        return causes
    for name in sorted(resources.requests):
        if name not in resources.limits:
            continue
        wanted, limit = resource_amount(name, resources.requests[name]), resource_amount(name, resources.limits[name])
        if wanted > limit:
            why = f"must be less than or equal to {name} limit of {resources.limits[name]}"
            causes.append(invalid(f"{field}.requests", resources.requests[name], why))
        elif wanted != limit and "/" in name:
            why = f"must be equal to {name} limit of {resources.limits[name]}"
            causes.append(invalid(f"{field}.requests", resources.requests[name], why))
    return causes
