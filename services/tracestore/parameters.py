"""The query API's parameters, read as Jaeger reads them; its words for what is wrong with them. Pure."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

LIMIT_DEFAULT = 100
LOOKBACK_NS_DEFAULT = 48 * 3600 * 10**9
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_UNIT_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


class BadParameter(ValueError):
    """A parameter that cannot be read; the message is Jaeger's."""


@dataclass(frozen=True, slots=True)
class Search:
    """What traces are wanted: those with a span that has all of this. Times are Unix nanoseconds; a duration of None is
    no bound; `tags` are (key, value) pairs.
    """

    service: str
    operation: str
    tags: tuple[tuple[str, str], ...]
    start_ns: int
    end_ns: int
    shortest_ns: int | None
    longest_ns: int | None
    limit: int


Query = Sequence[tuple[str, str]]


def first(query: Query, name: str) -> str:
    """The first value of a parameter, empty when it is not given."""
    return next((value for key, value in query if key == name), "")


def parse_search(query: Query, now_ns: int) -> Search:
    """Raises BadParameter."""
    service = first(query, "service")
    if not service:
        raise BadParameter("parameter 'service' is required")
    start_ns = _microseconds(query, "start", now_ns - LOOKBACK_NS_DEFAULT)
    end_ns = _microseconds(query, "end", now_ns)
    limit = integer(first(query, "limit")) if first(query, "limit") else LIMIT_DEFAULT
    if limit <= 0:
        raise BadParameter("search depth must be greater than 0 and less than max traces")
    shortest = duration_ns(query, "minDuration")
    longest = duration_ns(query, "maxDuration")
    if shortest and longest and longest < shortest:
        raise BadParameter("'maxDuration' should be greater than 'minDuration'")
    return Search(
        service=service,
        operation=first(query, "operation"),
        tags=_tags(query),
        start_ns=start_ns,
        end_ns=end_ns,
        shortest_ns=shortest,
        longest_ns=longest,
        limit=limit,
    )


def parse_trace_id(text: str) -> str:
    """32 lower-case digits. Raises BadParameter."""
    if len(text) > 32:
        raise BadParameter(f"TraceID cannot be longer than 32 hex characters: {text}")
    if not re.fullmatch(r"[0-9a-fA-F]{1,32}", text):
        raise BadParameter(f'strconv.ParseUint: parsing "{text}": invalid syntax')
    return text.lower().zfill(32)


def integer(text: str) -> int:
    """Raises BadParameter."""
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        raise BadParameter(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def parameter_integer(query: Query, name: str, default: int) -> int:
    """Raises BadParameter, naming the parameter."""
    text = first(query, name)
    if not text:
        return default
    try:
        return integer(text)
    except BadParameter as error:
        raise BadParameter(f"unable to parse param '{name}': {error}") from None


def _microseconds(query: Query, name: str, default_ns: int) -> int:
    return parameter_integer(query, name, default_ns // 1000) * 1000 if first(query, name) else default_ns


def duration_ns(query: Query, name: str) -> int | None:
    """A Go duration, such as 1.5s or 300ms. Raises BadParameter."""
    text = first(query, name)
    if not text:
        return None
    body = text.lstrip("+-")
    parts = _DURATION.findall(body)
    if body != "0" and (not parts or "".join(number + unit for number, unit in parts) != body):
        raise BadParameter(f"unable to parse param '{name}': time: {_duration_fault(body)} \"{text}\"")
    total = sum(float(number) * _UNIT_NS[unit] for number, unit in parts)
    return int(-total if text.startswith("-") else total)


def _duration_fault(body: str) -> str:
    return "missing unit in duration" if re.fullmatch(r"\d+(\.\d*)?", body) else "invalid duration"


def _tags(query: Query) -> tuple[tuple[str, str], ...]:
    """`tag=key:value`, and `tags={"key": "value"}`."""
    tags: dict[str, str] = {}
    for key, value in query:
        if key == "tag":
            name, colon, wanted = value.partition(":")
            if not colon:
                raise BadParameter(f"malformed 'tag' parameter, expecting key:value, received: {value}")
            tags[name] = wanted
        elif key == "tags":
            tags.update(_json_tags(value))
    return tuple(tags.items())


def _json_tags(text: str) -> dict[str, str]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not all(isinstance(value, str) for value in parsed.values()):
        raise BadParameter("malformed 'tags' parameter, cannot unmarshal JSON: wanted an object of strings")
    return parsed
