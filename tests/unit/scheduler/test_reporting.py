"""What the scheduler tells of a pod reaches the store as events, and as a condition where the pod has no place."""

import asyncio
import random

from apiserver.store.memory import MemoryStore
from protos.orrery.v1.event_pb2 import Event
from protos.orrery.v1.pod_pb2 import Pod
from scheduler.reporting import Reporter
from services.client.api import ApiClient
from services.runtime.clock import RealClock
from services.runtime.logging import silent
from tests import direct
from tests.transcripts.test_scheduler_machine import pod


async def events(client: ApiClient) -> dict[str, Event]:
    """By reason."""
    found, _ = await client.list("events")
    return {event.reason: event for event in (Event.FromString(item.value) for item in found)}


async def test_a_fault_of_a_plugin_is_an_event_and_never_takes_a_pod_its_place() -> None:
    async with direct.api_servers([MemoryStore()]) as (api,):
        fence = await direct.lead(api.client)
        await api.client.create("pods", direct.pod("a"))
        created = Pod.FromString((await api.client.get("pods", "a", namespace="default")).value)
        view = pod("a", uid=created.metadata.uid)
        reporter = Reporter(api.client, RealClock(), random.Random(1), "s", silent(), lambda: fence)
        running = asyncio.create_task(reporter.run())
        reporter.report(view, "n1", "Successfully assigned default/a to n1")
        for _ in range(3):
            reporter.report(view, "", "plugin Faulty raised ValueError at PostBind: no", fault=True)
        while len(told := await events(api.client)) < 2:  # noqa: ASYNC110 - the store is another process's in life
            await asyncio.sleep(0)
        await direct.stop(running)
        assert told["Scheduled"].type == "Normal" and told["PluginFailed"].type == "Warning"
        assert told["PluginFailed"].message == "plugin Faulty raised ValueError at PostBind: no"
        now = Pod.FromString((await api.client.get("pods", "a", namespace="default")).value)
        assert not now.status.conditions
        assert len((await api.client.list("events"))[0]) == 2, "said once"
