"""The query API's parameters, read as Jaeger reads them, in its order; its words for what is wrong with them. Pure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from services.tracestore.go_words import (
    INTEGER_MAX,
    BadValue,
    parse_boolean,
    parse_duration_ns,
    parse_hexadecimal,
    parse_integer,
)

T = TypeVar("T")
LIMIT_DEFAULT = 100
# Jaeger's memory storage stops at as many traces as it may hold; ours at what one answer may hold.
LIMIT_MAX = 10_000
LOOKBACK_NS_DEFAULT = 48 * 3600 * 10**9
DEPENDENCIES_LOOKBACK_MS_DEFAULT = 24 * 3600 * 1000
SERVICE_REQUIRED = "parameter 'service' is required"


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


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """A question for traces: by their ids where there are some, else by search. `raw`: as they came, not put in order."""

    trace_ids: tuple[str, ...]
    search: Search
    raw: bool


Query = Sequence[tuple[str, str]]


def first(query: Query, name: str) -> str:
    """The first value of a parameter, empty when it is not given."""
    return next((value for key, value in query if key == name), "")


def parse_trace_query(query: Query, now_ns: int) -> TraceQuery:
    """Raises BadParameter."""
    start_ns = _microseconds(query, "start", now_ns - LOOKBACK_NS_DEFAULT)
    end_ns = _microseconds(query, "end", now_ns)
    tags = _tags(query)
    try:
        limit = parse_integer(first(query, "limit"), 32) if first(query, "limit") else LIMIT_DEFAULT
    except BadValue as error:
        raise BadParameter(str(error)) from None
    shortest_ns = parse(query, "minDuration", parse_duration_ns, None)
    longest_ns = parse(query, "maxDuration", parse_duration_ns, None)
    try:
        trace_ids = tuple(parse_trace_id(value) for key, value in query if key == "traceID")
    except BadParameter as error:
        raise BadParameter(f"cannot parse traceID param: {error}") from None
    raw = parse_raw(query)
    service = first(query, "service")
    if not trace_ids and not service:
        raise BadParameter(SERVICE_REQUIRED)
    if shortest_ns and longest_ns and longest_ns < shortest_ns:
        raise BadParameter("'maxDuration' should be greater than 'minDuration'")
    if not trace_ids and not 0 < limit <= LIMIT_MAX:
        raise BadParameter("search depth must be greater than 0 and less than max traces")
    search = Search(
        service=service,
        operation=first(query, "operation"),
        tags=tags,
        start_ns=start_ns,
        end_ns=end_ns,
        shortest_ns=shortest_ns,
        longest_ns=longest_ns,
        limit=limit,
    )
    return TraceQuery(trace_ids, search, raw)


def parse_one_trace_query(text: str, query: Query) -> tuple[str, bool]:
    """(trace id, raw) of /api/traces/ID. Raises BadParameter.

    `start` and `end` are hints for stores that are split by time; ours is not, but a wrong one is wrong.
    """
    trace_id = parse_trace_id(text)
    for name in ("start", "end"):
        parse(query, name, parse_integer, 0)
    return trace_id, parse_raw(query)


def parse_dependencies_query(query: Query, now_ns: int) -> tuple[int, int]:
    """(from, to) in Unix nanoseconds. Raises BadParameter."""
    end_ms = parse(query, "endTs", parse_integer, now_ns // 10**6)
    lookback_ms = parse(query, "lookback", parse_integer, DEPENDENCIES_LOOKBACK_MS_DEFAULT)
    if lookback_ms < 0:
        raise BadParameter("end time must be greater than start time")
    return _in_range((end_ms - lookback_ms) * 10**6), _in_range(end_ms * 10**6)


def parse_trace_id(text: str) -> str:
    """32 lower-case digits. Raises BadParameter."""
    if len(text.encode()) > 32:
        raise BadParameter(f"TraceID cannot be longer than 32 hex characters: {text}")
    try:
        high = parse_hexadecimal(text[:-16]) if len(text) > 16 else 0
        return f"{high:016x}{parse_hexadecimal(text[-16:]):016x}"
    except BadValue as error:
        raise BadParameter(str(error)) from None


def parse_raw(query: Query) -> bool:
    """Raises BadParameter."""
    return parse(query, "raw", parse_boolean, default=False)


def parse(query: Query, name: str, read: Callable[[str], T], default: T) -> T:
    """A parameter, `default` when it is not given or empty. Raises BadParameter, naming the parameter."""
    text = first(query, name)
    if not text:
        return default
    try:
        return read(text)
    except BadValue as error:
        raise BadParameter(f"unable to parse param '{name}': {error}") from None


def _microseconds(query: Query, name: str, default_ns: int) -> int:
    return _in_range(parse(query, name, parse_integer, default_ns // 1000) * 1000)


def _in_range(nanoseconds: int) -> int:
    """The nearest time that a span can have."""
    return max(-INTEGER_MAX, min(INTEGER_MAX, nanoseconds))


def _tags(query: Query) -> tuple[tuple[str, str], ...]:
    """`tag=key:value`, and `tags={"key": "value"}`."""
    tags: dict[str, str] = {}
    for name, value in query:
        if name == "tag":
            key, colon, wanted = value.partition(":")
            if not colon:
                raise BadParameter(f"malformed 'tag' parameter, expecting key:value, received: {value}")
            tags[key] = wanted
    for name, value in query:
        if name == "tags":
            tags.update(_json_tags(value))
    return tuple(tags.items())


def _json_tags(text: str) -> dict[str, str]:
    try:
        # RecursionError: of brackets in brackets.
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = text
    if parsed is None:
        return {}
    if not isinstance(parsed, dict) or not all(isinstance(value, str | None) for value in parsed.values()):
        raise BadParameter("malformed 'tags' parameter, cannot unmarshal JSON: wanted an object of strings")
    return {_unicode(key): _unicode(value or "") for key, value in parsed.items()}


def _unicode(text: str) -> str:
    """JSON can write half a surrogate pair, which is no character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
