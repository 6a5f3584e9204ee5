"""Reading traces while processes still write them: from a mesh's span file, or through Jaeger's query API."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from services.lab.compose import ComposeFolder
from services.lab.errors import LabError
from services.lab.state import MeshFolder
from services.spans.store import SpanRecord, open_existing
from services.tracestore.parameters import Search
from services.tracestore.search import find_trace_ids, traces

SETTLE_SECONDS_MAX = 3.0
SETTLE_POLL_SECONDS = 0.25
QUERY_SECONDS_MAX = 10.0
SEARCH_LIMIT = 1_000


class TraceSource(Protocol):
    """Where traces are; `where` says it to a person."""

    where: str

    def trace(self, trace_id: str) -> list[SpanRecord]:
        """The spans of a trace, by start; none for one that is not there."""
        ...

    def search(self, service: str, tags: Mapping[str, str], operation: str = "") -> list[list[SpanRecord]]:
        """The newest traces that have a span of this service, by this name, with all these tags."""
        ...

    def close(self) -> None: ...


class FileSource:
    """The span file of a mesh. Raises LabError when there is none."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        store = open_existing(str(path))
        if store is None:
            raise LabError(f"there is no span store at {path}; start the mesh with: orrery up")
        self._store = store

    def trace(self, trace_id: str) -> list[SpanRecord]:
        return self._store.trace(trace_id)

    def search(self, service: str, tags: Mapping[str, str], operation: str = "") -> list[list[SpanRecord]]:
        wanted = Search(service, operation, tuple(tags.items()), 0, time.time_ns(), None, None, SEARCH_LIMIT)
        return traces(self._store, find_trace_ids(self._store, wanted))

    def close(self) -> None:
        self._store.close()


class QuerySource:
    """A query API at `url`: our trace store's, or Jaeger's."""

    def __init__(self, url: str) -> None:
        self.where = url.rstrip("/")

    def trace(self, trace_id: str) -> list[SpanRecord]:
        data = self._ask(f"/api/traces/{trace_id}")
        return sorted((span for item in data for span in _spans(item)), key=lambda span: (span.start_ns, -span.end_ns))

    def search(self, service: str, tags: Mapping[str, str], operation: str = "") -> list[list[SpanRecord]]:
        parameters = {"service": service, "tags": json.dumps(dict(tags)), "limit": str(SEARCH_LIMIT)}
        if operation:
            parameters["operation"] = operation
        return [_spans(item) for item in self._ask("/api/traces?" + urllib.parse.urlencode(parameters))]

    def close(self) -> None:
        """Nothing is held."""

    def _ask(self, path: str) -> list[Any]:
        """The data of an answer; empty for a trace that is not there. Raises LabError."""
        try:
            with urllib.request.urlopen(f"{self.where}{path}", timeout=QUERY_SECONDS_MAX) as answer:  # noqa: S310 - http, from our own record
                data = json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise LabError(f"{self.where} refused the query: {error.read().decode(errors='replace')[:200]}") from None
        except (OSError, ValueError, KeyError) as error:
            raise LabError(f"no traces from {self.where}: {error}") from None
        return data or []


def trace_source(folder: MeshFolder, store: Path | None = None) -> TraceSource:
    """Where the traces of a mesh are; `store` names another file. Raises LabError."""
    if store is None and isinstance(folder, ComposeFolder):
        return QuerySource(folder.trace_query_url())
    return FileSource(store or folder.traces_path)


def find_traces(
    folder: MeshFolder, service: str, operation: str, tags: Mapping[str, str], processes: Sequence[str]
) -> list[list[SpanRecord]]:
    """The newest traces, SEARCH_LIMIT at most, that have such a span, and spans of all these processes. Raises LabError."""
    source = trace_source(folder)
    try:
        found = source.search(service, tags, operation)
    finally:
        source.close()
    return [spans for spans in found if {span.instance for span in spans}.issuperset(processes)]


def settled_trace(source: TraceSource, trace_id: str) -> list[SpanRecord]:
    """The trace's spans once their number rests: processes write theirs every half second."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    spans = source.trace(trace_id)
    if spans and time.time_ns() - max(span.end_ns for span in spans) > SETTLE_SECONDS_MAX * 1e9:
        return spans
    rest = 0
    while rest < 3 and time.monotonic() < deadline:
        time.sleep(SETTLE_POLL_SECONDS)
        again = source.trace(trace_id)
        rest = rest + 1 if len(again) == len(spans) else 0
        spans = again
    return spans


# Tags by which Jaeger says what a span record has fields for.
_FIELDS = ("span.kind", "otel.scope.name", "otel.scope.version", "otel.status_code", "otel.status_description", "error")


def _spans(answer: Mapping[str, Any]) -> list[SpanRecord]:
    """A trace of the query API as records; times are whole microseconds."""
    processes = {name: (item["serviceName"], _tags(item["tags"])) for name, item in answer["processes"].items()}
    return [_span(item, *processes[item["processID"]]) for item in answer["spans"]]


def _span(item: Mapping[str, Any], service: str, resource: dict[str, Any]) -> SpanRecord:
    tags = _tags(item["tags"])
    parents = [reference for reference in item["references"] if reference["refType"] == "CHILD_OF"]
    links = [reference for reference in item["references"] if reference["refType"] != "CHILD_OF"]
    start_ns = item["startTime"] * 1000
    status = str(tags.get("otel.status_code", "ERROR" if tags.get("error") else ""))
    return SpanRecord(
        trace_id=item["traceID"],
        span_id=item["spanID"],
        parent_id=parents[0]["spanID"] if parents else "",
        service=service,
        instance=str(resource.get("service.instance.id", "")),
        name=item["operationName"],
        kind=str(tags.get("span.kind", "")).upper(),
        start_ns=start_ns,
        end_ns=start_ns + item["duration"] * 1000,
        status=status,
        error=str(tags.get("otel.status_description", "")) or ("error" if status == "ERROR" else ""),
        scope=str(tags.get("otel.scope.name", "")),
        scope_version=str(tags.get("otel.scope.version", "")),
        attributes={key: value for key, value in tags.items() if key not in _FIELDS},
        resource=resource,
        events=tuple(_event(log) for log in item["logs"]),
        links=tuple(f"{reference['traceID']}-{reference['spanID']}" for reference in links),
    )


def _event(log: Mapping[str, Any]) -> tuple[str, int, Mapping[str, Any]]:
    fields = _tags(log["fields"])
    return str(fields.pop("event", "")), log["timestamp"] * 1000, fields


def _tags(pairs: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Tags by key; JSON text of a list is a list again."""
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
