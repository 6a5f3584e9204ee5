"""Jaeger's query API over HTTP, a health check, and counters in Prometheus' text format.

Queries run on a thread of their own with a connection of their own, so that a long search keeps nobody from writing.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiohttp import web

from services.spans.store import SpanStore
from services.tracestore import search
from services.tracestore.answers import envelope, error_answer, operations_answer, trace_answer
from services.tracestore.ingest import Ingest
from services.tracestore.parameters import (
    BadParameter,
    Query,
    first,
    parameter_integer,
    parse_search,
    parse_trace_id,
)

T = TypeVar("T")
DEPENDENCIES_LOOKBACK_MS = 24 * 3600 * 1000
TRACE_NOT_FOUND = "trace not found"


class QueryApi:
    """`application()` is the aiohttp application. `store` is the reader's own connection."""

    def __init__(self, store: SpanStore, ingest: Ingest, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._store = store
        self._ingest = ingest
        self._now_ns = now_ns
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

    async def _on_thread(self, work: Callable[[SpanStore], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._store)

    async def _services(self, _request: web.Request) -> web.Response:
        names = await self._on_thread(search.list_services)
        return _answer(envelope(names or None, len(names)))

    async def _service_operations(self, request: web.Request) -> web.Response:
        service = request.match_info["service"]
        found = await self._on_thread(lambda store: search.list_operations(store, service))
        names = list(dict.fromkeys(name for name, _ in found))
        return _answer(envelope(names or None, len(names)))

    async def _operations(self, request: web.Request) -> web.Response:
        query = _query(request)
        service = first(query, "service")
        if not service:
            raise BadParameter("parameter 'service' is required")
        kind = first(query, "spanKind")
        found = await self._on_thread(lambda store: search.list_operations(store, service, kind))
        return _answer(envelope(operations_answer(found), len(found)))

    async def _traces(self, request: web.Request) -> web.Response:
        query = _query(request)
        try:
            named = [parse_trace_id(value) for key, value in query if key == "traceID" and value]
        except BadParameter as error:
            raise BadParameter(f"cannot parse traceID param: {error}") from None
        if named:
            found = await self._on_thread(lambda store: search.traces(store, named))
            there = {spans[0].trace_id for spans in found}
            missing = [{"msg": TRACE_NOT_FOUND, "traceID": item} for item in named if item not in there]
            return _answer(envelope([trace_answer(spans) for spans in found], errors=missing))
        wanted = parse_search(query, self._now_ns())
        found = await self._on_thread(lambda store: search.traces(store, search.find_trace_ids(store, wanted)))
        return _answer(envelope([trace_answer(spans) for spans in found]))

    async def _trace(self, request: web.Request) -> web.Response:
        trace_id = parse_trace_id(request.match_info["trace_id"])
        for name in ("start", "end"):
            # Hints for stores that are split by time; this one is not, but a wrong one is wrong.
            parameter_integer(_query(request), name, 0)
        spans = await self._on_thread(lambda store: store.trace(trace_id))
        if not spans:
            return _answer(error_answer(404, TRACE_NOT_FOUND), 404)
        return _answer(envelope([trace_answer(spans)]))

    async def _dependencies(self, request: web.Request) -> web.Response:
        query = _query(request)
        end_ms = parameter_integer(query, "endTs", self._now_ns() // 10**6)
        lookback_ms = parameter_integer(query, "lookback", DEPENDENCIES_LOOKBACK_MS)
        start_ns, end_ns = (end_ms - lookback_ms) * 10**6, end_ms * 10**6
        calls = await self._on_thread(lambda store: search.dependencies(store, start_ns, end_ns))
        return _answer(
            envelope([{"parent": parent, "child": child, "callCount": count} for parent, child, count in calls])
        )

    async def _healthz(self, _request: web.Request) -> web.Response:
        """The file can be read, and the last write to it went well."""
        await self._on_thread(search.list_services)
        if not self._ingest.healthy:
            return web.Response(status=503, text="the span file cannot be written\n")
        return web.Response(text="ok\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        counters = self._ingest.counters
        values = {
            "tracestore_spans_received_total": counters.received,
            "tracestore_spans_stored_total": counters.stored,
            "tracestore_spans_refused_total": counters.refused,
            "tracestore_spans_dropped_total": counters.dropped,
            "tracestore_spans_forwarded_total": counters.forwarded,
            "tracestore_spans_forward_dropped_total": counters.forward_dropped,
        }
        lines = [line for name, value in values.items() for line in (f"# TYPE {name} counter", f"{name} {value}")]
        used = await self._on_thread(lambda store: store.bytes_used())
        lines += ["# TYPE tracestore_database_bytes gauge", f"tracestore_database_bytes {used}"]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _root(self, _request: web.Request) -> web.Response:
        return web.Response(
            text="Orrery's trace store: Jaeger's query API is at /api/services, /api/operations, /api/traces, "
            "/api/traces/ID and /api/dependencies; see also /healthz and /metrics.\n"
        )

    def close(self) -> None:
        self._thread.shutdown(wait=False)


def _query(request: web.Request) -> Query:
    return list(request.query.items())


def _answer(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        status=status, text=json.dumps(body, separators=(",", ":"), ensure_ascii=False), content_type="application/json"
    )


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Jaeger's shape for what is wrong with a request."""
    try:
        return await handler(request)
    except BadParameter as error:
        return _answer(error_answer(400, str(error)), 400)
    except web.HTTPNotFound:
        return _answer(error_answer(404, f"there is no {request.path}; the API begins at /api/services"), 404)
