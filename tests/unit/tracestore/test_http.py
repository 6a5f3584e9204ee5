"""The query API's bounds: searches that take too long, too many at once, and the end of the process during one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp.test_utils import TestClient, TestServer

from services.spans.store import SpanStore
from services.tracestore import http
from services.tracestore.http import QueryApi
from services.tracestore.ingest import Counters, Ingest

# A statement that never ends by itself.
ENDLESS = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT MAX(x) FROM n"


class Api:
    """An API in which /api/services is endless."""

    def __init__(self, query: QueryApi, client: Any) -> None:
        self.query = query
        self.client = client

    async def errors(self, path: str = "/api/services") -> tuple[int, str]:
        async with self.client.get(path) as answer:
            return answer.status, (await answer.json())["errors"][0]["msg"]


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    reader, writer = (SpanStore(str(tmp_path / "traces.sqlite")) for _ in range(2))
    ingest = Ingest(writer, Counters(), structlog.get_logger())
    query = QueryApi(reader, ingest)
    monkeypatch.setattr(http.search, "list_services", lambda store: store.db.execute(ENDLESS).fetchall())
    async with TestClient(TestServer(query.application())) as client:
        yield Api(query, client)
        await query.close()
    await ingest.close()
    reader.close()
    writer.close()


async def test_a_search_that_takes_too_long_is_given_up_and_the_next_is_served(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "QUERY_SECONDS_MAX", 0.05)
    status, message = await api.errors()
    assert status == 503 and message.startswith("the search was broken off")
    assert await api.errors("/api/traces/1") == (404, "trace not found")


async def test_health_and_counters_do_not_wait_for_a_search_and_the_end_breaks_it_off(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "QUERY_SECONDS_MAX", 300.0)
    async with asyncio.TaskGroup() as tasks:
        search = tasks.create_task(api.errors())
        for path in ("/healthz", "/metrics", "/"):
            async with api.client.get(path) as answer:
                assert answer.status == 200
        assert not search.done()
        await api.query.close()
    assert search.result()[0] == 503


async def test_beyond_so_many_waiting_searches_the_next_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "QUERIES_WAITING_MAX", 3)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(api.errors()) for _ in range(4)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [(503, "3 queries wait already; ask again later")]
        await api.query.close()
