"""Go's way to read and to write values, as far as Jaeger's API shows it: numbers, durations, JSON. Pure.

The messages of what cannot be read are those of Go's strconv and time packages; a client that knows Jaeger knows them.
"""

import json
import math
import re
from decimal import Decimal
from typing import Any

INTEGER_MAX = 2**63 - 1
_UNIT_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")
_ESCAPED = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class BadValue(ValueError):
    """A text that cannot be read; the message is Go's."""


def parse_integer(text: str, bits: int = 64) -> int:
    """A decimal integer of so many bits, with a sign or without. Raises BadValue."""
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise BadValue(f"strconv.ParseInt: parsing {quoted(text)}: invalid syntax")
    limit = 1 << (bits - 1)
    # Python refuses to read integers of thousands of digits, zeros too.
    digits = text.lstrip("+-0")[:21]
    number = int(digits or "0") * (-1 if text.startswith("-") else 1)
    if not -limit <= number < limit:
        raise BadValue(f"strconv.ParseInt: parsing {quoted(text)}: value out of range")
    return number


def parse_hexadecimal(text: str) -> int:
    """An unsigned integer of 16 hex digits at most. Raises BadValue."""
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", text):
        raise BadValue(f"strconv.ParseUint: parsing {quoted(text)}: invalid syntax")
    return int(text, 16)


def parse_boolean(text: str) -> bool:
    """Raises BadValue."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise BadValue(f"strconv.ParseBool: parsing {quoted(text)}: invalid syntax")


def parse_duration_ns(text: str) -> int:
    """Nanoseconds of a duration such as 300ms, -1.5h or 2h45m. Raises BadValue."""
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    total = 0
    invalid = BadValue(f"time: invalid duration {quoted(text)}")
    if not rest:
        raise invalid
    while rest:
        part = re.match(r"([0-9]*)(?:\.([0-9]*))?", rest)
        assert part is not None, "it matches an empty text too"
        whole, fraction = part[1], part[2] or ""
        if not whole and not fraction:
            raise invalid
        unit = re.match(r"[^.0-9]*", rest[part.end() :])
        assert unit is not None, "it matches an empty text too"
        if not unit[0]:
            raise BadValue(f"time: missing unit in duration {quoted(text)}")
        if unit[0] not in _UNIT_NS:
            raise BadValue(f"time: unknown unit {quoted(unit[0])} in duration {quoted(text)}")
        nanoseconds = _UNIT_NS[unit[0]]
        total += int(whole.lstrip("0")[:21] or "0") * nanoseconds + int(
            fraction[:20] or "0"
        ) * nanoseconds // 10 ** len(fraction[:20])
        rest = rest[part.end() + unit.end() :]
    if total > INTEGER_MAX:
        raise invalid
    return -total if text.startswith("-") else total


def quoted(text: str) -> str:
    """A text as an error message shows it."""
    return json.dumps(text, ensure_ascii=False)


def text_of(value: Any) -> str:
    """An attribute's value as one text: what a tag search compares."""
    match value:
        case str():
            return value
        case None:
            return ""
        case {"bytes": str(encoded)} if len(value) == 1:
            return encoded
        case float() if not math.isfinite(value):
            return json_text(value)[1:-1]
    return json_text(value)


def json_text(value: Any) -> str:
    """An attribute's value as encoding/json writes it: no spaces, keys in order, HTML's characters escaped.

    Where JSON has no word (infinities, what is no number), the value stands as text.
    """
    match value:
        case None | bool() | int():
            return json.dumps(value)
        case float():
            return _float_text(value)
        case {"bytes": str(encoded)} if len(value) == 1:
            return json.dumps(encoded)
        case dict():
            return "{" + ",".join(f"{json_text(key)}:{json_text(value[key])}" for key in sorted(value)) + "}"
        case list() | tuple():
            return "[" + ",".join(json_text(item) for item in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).translate(_ESCAPED)


def _float_text(value: float) -> str:
    """As ECMAScript writes it: whole numbers without a point, exponents from 1e21 and below 1e-6."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"+Inf"' if value > 0 else '"-Inf"'
    digits, _, exponent = repr(value).partition("e")
    if value and not 1e-6 <= abs(value) < 1e21:
        return f"{digits.removesuffix('.0')}e{int(exponent):+d}"
    return f"{Decimal(repr(value)):f}".removesuffix(".0")
