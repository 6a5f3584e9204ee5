"""The forms that single values take in Kubernetes' JSON, both ways. What cannot be read raises ValueError with a sentence
that says what was wanted and what was found; the codec adds the path.
"""

import base64
import binascii
import json
import math
import re
from datetime import datetime, timedelta
from typing import Any

from services.model.quantity import parse_quantity

RAW_JSON_DEPTH_MAX = 100
_TEXT_SHOWN_MAX = 60
_EPOCH = datetime(1970, 1, 1)
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII | re.IGNORECASE
)
_INT_LIMITS = {32: 2**31, 64: 2**63}
_NUMBER_SHOWN_MAX = 10**40


def shown(data: Any) -> str:
    """`data` in the words of an error message."""
    match data:
        case None:
            return "null"
        case bool():
            return f"the boolean {str(data).lower()}"
        case int() if abs(data) > _NUMBER_SHOWN_MAX:
            return "a number of more than 40 digits"
        case int() | float():
            return f"the number {data}"
        case str():
            cut = data if len(data) <= _TEXT_SHOWN_MAX else data[:_TEXT_SHOWN_MAX] + "..."
            return f"the string {json.dumps(cut)}"
        case dict():
            return "an object"
        case list():
            return "a list"
    return f"a value of type {type(data).__name__}"


def read_string(data: object) -> str:
    if not isinstance(data, str):
        hint = ""
        if isinstance(data, bool):
            hint = "; put it in quotes (a bare yes, no, on, off, true or false is a boolean in YAML)"
        elif isinstance(data, int | float):
            hint = "; put it in quotes"
        raise ValueError(f"wanted a string, found {shown(data)}{hint}")
    if not data.isascii():
        try:
            data.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"not valid Unicode at character {error.start}") from error
    return data


def read_integer(data: Any, bits: int) -> int:
    """An integer of 32 or 64 bits."""
    if not isinstance(data, int) or isinstance(data, bool):
        hint = "; remove the quotes" if isinstance(data, str) and re.fullmatch(r"[+-]?\d{1,19}", data, re.ASCII) else ""
        raise ValueError(f"wanted an integer, found {shown(data)}{hint}")
    limit = _INT_LIMITS[bits]
    if not -limit <= data < limit:
        raise ValueError(f"wanted an integer from {-limit} to {limit - 1}, found {shown(data)}")
    return data


def read_bool(data: Any) -> bool:
    if not isinstance(data, bool):
        hint = "; remove the quotes" if data in ("true", "false") else ""
        raise ValueError(f"wanted true or false, found {shown(data)}{hint}")
    return data


def read_quantity(data: Any) -> str:
    """The quantity's text; a number becomes its text."""
    text = data
    if isinstance(data, float) and math.isfinite(data):
        text = str(int(data)) if data.is_integer() else repr(data)
    elif isinstance(data, int) and not isinstance(data, bool) and abs(data) <= _NUMBER_SHOWN_MAX:
        text = str(data)
    if not isinstance(text, str):
        raise ValueError(f"wanted a quantity like 500m, 2 or 80Gi, found {shown(data)}")
    parse_quantity(text)
    return text


def read_int_or_string(data: Any) -> int | str:
    if isinstance(data, str):
        return read_string(data)
    if isinstance(data, int) and not isinstance(data, bool):
        return read_integer(data, 32)
    raise ValueError(f"wanted an integer or a string, found {shown(data)}")


def read_base64(data: Any) -> bytes:
    if not isinstance(data, str):
        raise ValueError(f"wanted a string in base64, found {shown(data)}")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"wanted a string in base64, found {shown(data)}: {error}") from error


def read_time(data: Any, *, micro: bool) -> tuple[int, int]:
    """(seconds, nanoseconds) since the epoch of an RFC 3339 text, truncated to the seconds or microseconds that the
    field keeps.
    """
    match = _TIME.fullmatch(data) if isinstance(data, str) else None
    if match is None:
        raise ValueError(f'wanted a time like "2026-05-01T12:00:00Z", found {shown(data)}')
    *parts, fraction, sign, hours, minutes = match.groups()
    year, month, day, hour, minute, second = (int(part) for part in parts)
    try:
        moment = datetime(year, month, day, hour, minute, second)
        if sign:
            if int(hours) > 23 or int(minutes) > 59:
                raise ValueError("offset out of range")
            offset = timedelta(hours=int(hours), minutes=int(minutes))
            moment = moment - offset if sign == "+" else moment + offset
    except (ValueError, OverflowError) as error:
        raise ValueError(f'wanted a time like "2026-05-01T12:00:00Z", found {shown(data)}: {error}') from error
    nanos = int((fraction or "").ljust(9, "0")) if micro else 0
    since = moment - _EPOCH
    return since.days * 86_400 + since.seconds, nanos - nanos % 1000


def write_time(seconds: int, nanos: int, *, micro: bool) -> str:
    """RFC 3339 in UTC: whole seconds (metav1.Time) or six digits (metav1.MicroTime)."""
    if not 0 <= nanos < 1_000_000_000:
        raise ValueError(f"{nanos} nanoseconds are no part of a second")
    try:
        moment = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000 if micro else 0)
    except OverflowError as error:
        raise ValueError(f"{seconds} seconds since 1970 are in no year from 1 to 9999") from error
    return moment.isoformat(timespec="microseconds" if micro else "seconds") + "Z"


def read_raw_json(data: Any) -> bytes:
    """Any JSON object, as compact bytes."""
    if not isinstance(data, dict):
        raise ValueError(f"wanted an object, found {shown(data)}")
    _check_plain(data)
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _check_plain(data: Any) -> None:
    """Refuses what JSON cannot hold, and nesting that would exhaust the stack of who writes it."""
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > RAW_JSON_DEPTH_MAX:
            raise ValueError(f"nested deeper than {RAW_JSON_DEPTH_MAX} levels")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                for key in item:
                    read_string(key)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str):
                read_string(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"JSON cannot hold {shown(item)}")
            elif isinstance(item, int) and abs(item) > _NUMBER_SHOWN_MAX:
                raise ValueError(f"{shown(item)} is too long")
            elif not (item is None or isinstance(item, int | float)):
                raise ValueError(f"JSON cannot hold {shown(item)}")
        level = below


def write_raw_json(value: bytes) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{len(value)} bytes are not JSON: {error}") from error
