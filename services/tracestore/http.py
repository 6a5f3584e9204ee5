"""Jaeger's query API over HTTP, a health check, and counters in Prometheus' text format.

Queries run, and their answers are written out, on a thread of their own with a connection of their own, so that a long
search keeps nobody from writing. One that takes longer than QUERY_SECONDS_MAX is given up. Neither the health check nor
the counters wait for it.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiohttp import web

from services.spans.store import SpanStore
from services.tracestore import search
from services.tracestore.answers import envelope, error_answer, operations_answer, shown_trace_id, trace_answer
from services.tracestore.ingest import Ingest
from services.tracestore.parameters import (
    SERVICE_REQUIRED,
    BadParameter,
    Query,
    first,
    parse_dependencies_query,
    parse_one_trace_query,
    parse_trace_query,
)
from services.tracestore.search import TooMuch

T = TypeVar("T")
QUERY_SECONDS_MAX = 10.0
QUERIES_WAITING_MAX = 32
# How many of SQLite's steps pass between two looks at the clock; some milliseconds.
_STEPS = 50_000
TRACE_NOT_FOUND = "trace not found"
ENDING = "the trace store is about to end"


class QueryApi:
    """`application()` is the aiohttp application. `store` is the reader's own connection."""

    def __init__(self, store: SpanStore, ingest: Ingest, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._store = store
        self._ingest = ingest
        self._now_ns = now_ns
        self._waiting = 0
        self._closing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="span-reader")

    def application(self) -> web.Application:
        application = web.Application(middlewares=[_errors])
        application.add_routes(
            [
                web.get("/api/services", self._services),
                web.get("/api/services/{service}/operations", self._service_operations),
                web.get("/api/operations", self._operations),
                web.get("/api/traces", self._traces),
                web.get("/api/traces/{trace_id}", self._trace),
                web.get("/api/dependencies", self._dependencies),
                web.get("/healthz", self._healthz),
                web.get("/metrics", self._metrics),
                web.get("/", self._root),
            ]
        )
        return application

    async def _answer(self, request: web.Request, work: Callable[[SpanStore], dict[str, Any] | None]) -> web.Response:
        """The envelope that `work` makes, 404 for None. Raises sqlite3.OperationalError when it takes too long."""
        pretty = first(_query(request), "prettyPrint") not in ("", "false")

        def run() -> str | None:
            if self._closing:
                raise sqlite3.OperationalError("interrupted")
            until = time.monotonic() + QUERY_SECONDS_MAX
            self._store.db.set_progress_handler(lambda: self._closing or time.monotonic() > until, _STEPS)
            body = work(self._store)
            return None if body is None else _text(body, pretty=pretty)

        if self._closing:
            return _error(503, ENDING)
        if self._waiting >= QUERIES_WAITING_MAX:
            return _error(503, f"{QUERIES_WAITING_MAX} queries wait already; ask again later")
        self._waiting += 1
        try:
            text = await asyncio.get_running_loop().run_in_executor(self._thread, run)
        finally:
            self._waiting -= 1
        if text is None:
            return _error(404, TRACE_NOT_FOUND)
        return web.Response(text=text, content_type="application/json")

    async def _services(self, request: web.Request) -> web.Response:
        def work(store: SpanStore) -> dict[str, Any]:
            names = search.list_services(store)
            return envelope(names or None, len(names))

        return await self._answer(request, work)

    async def _service_operations(self, request: web.Request) -> web.Response:
        service = request.match_info["service"]

        def work(store: SpanStore) -> dict[str, Any]:
            names = list(dict.fromkeys(name for name, _ in search.list_operations(store, service)))
            return envelope(names or None, len(names))

        return await self._answer(request, work)

    async def _operations(self, request: web.Request) -> web.Response:
        query = _query(request)
        service, kind = first(query, "service"), first(query, "spanKind")
        if not service:
            raise BadParameter(SERVICE_REQUIRED)

        def work(store: SpanStore) -> dict[str, Any]:
            found = search.list_operations(store, service, kind)
            return envelope(operations_answer(found), len(found))

        return await self._answer(request, work)

    async def _traces(self, request: web.Request) -> web.Response:
        wanted = parse_trace_query(_query(request), self._now_ns())

        def work(store: SpanStore) -> dict[str, Any]:
            ids = list(wanted.trace_ids) or search.find_trace_ids(store, wanted.search)
            found = search.traces(store, ids, copies=wanted.raw)
            there = {spans[0].trace_id for spans in found}
            missing = [
                {"msg": TRACE_NOT_FOUND, "traceID": shown_trace_id(item)}
                for item in wanted.trace_ids
                if item not in there
            ]
            return envelope([trace_answer(spans, raw=wanted.raw) for spans in found], errors=missing)

        return await self._answer(request, work)

    async def _trace(self, request: web.Request) -> web.Response:
        trace_id, raw = parse_one_trace_query(request.match_info["trace_id"], _query(request))

        def work(store: SpanStore) -> dict[str, Any] | None:
            spans = store.trace(trace_id, copies=raw)
            return envelope([trace_answer(spans, raw=raw)]) if spans else None

        return await self._answer(request, work)

    async def _dependencies(self, request: web.Request) -> web.Response:
        start_ns, end_ns = parse_dependencies_query(_query(request), self._now_ns())
        service = first(_query(request), "service")

        def work(store: SpanStore) -> dict[str, Any]:
            calls = search.dependencies(store, start_ns, end_ns, service)
            return envelope([{"parent": parent, "child": child, "callCount": count} for parent, child, count in calls])

        return await self._answer(request, work)

    async def _healthz(self, _request: web.Request) -> web.Response:
        """The file can be read and written: tried, not remembered."""
        if reason := await self._ingest.probe():
            return web.Response(status=503, text=f"the span file cannot be written: {reason}\n")
        return web.Response(text="ok\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        counters = self._ingest.counters
        counted = {
            "tracestore_spans_received_total": counters.received,
            "tracestore_spans_stored_total": counters.stored,
            "tracestore_spans_refused_total": counters.refused,
            "tracestore_spans_dropped_total": counters.dropped,
            "tracestore_spans_forwarded_total": counters.forwarded,
            "tracestore_spans_forward_dropped_total": counters.forward_dropped,
        }
        lines = [line for name, value in counted.items() for line in (f"# TYPE {name} counter", f"{name} {value}")]
        lines += ["# TYPE tracestore_database_bytes gauge", f"tracestore_database_bytes {self._ingest.database_bytes}"]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _root(self, _request: web.Request) -> web.Response:
        return web.Response(
            text="Orrery's trace store: Jaeger's query API is at /api/services, /api/operations, /api/traces, "
            "/api/traces/ID and /api/dependencies; see also /healthz and /metrics.\n"
        )

    async def close(self) -> None:
        """Breaks off what runs; afterwards nothing uses the store any more."""
        self._closing = True
        await asyncio.to_thread(self._thread.shutdown)


def _query(request: web.Request) -> Query:
    return list(request.query.items())


def _text(body: dict[str, Any], *, pretty: bool = False) -> str:
    return json.dumps(
        body,
        indent=4 if pretty else None,
        separators=(",", ": " if pretty else ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def _error(code: int, message: str) -> web.Response:
    return web.Response(status=code, text=_text(error_answer(code, message)), content_type="application/json")


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Jaeger's shape for what is wrong with a request."""
    try:
        return await handler(request)
    except (BadParameter, TooMuch) as error:
        return _error(400, str(error))
    except web.HTTPNotFound:
        return _error(404, f"there is no {request.path}; the API begins at /api/services")
    except sqlite3.OperationalError as error:
        if str(error) == "interrupted":
            return _error(
                503, f"the search was broken off after {QUERY_SECONDS_MAX:.0f} s; ask for a shorter time or less"
            )
        return _error(500, f"the span file cannot be read: {error}")
