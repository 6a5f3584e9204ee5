"""The loop itself: virtual time, processes that stop and die, and what asyncio's own tools do on it."""

import asyncio
import contextvars
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.simulation.loop import Deadlock, Owner, SimulatedClock, StepsExceeded, VirtualLoop


def run(main: Coroutine[Any, Any, Any], loop: VirtualLoop | None = None) -> Any:
    loop = loop or VirtualLoop()
    try:
        return contextvars.Context().run(loop.run_until_complete, main)
    finally:
        loop.close()


def owner(loop: VirtualLoop) -> Owner:
    return Owner(loop, "p", random.Random(0))


def test_an_hour_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(3600.0)
        return asyncio.get_running_loop().time()

    assert run(main()) == 3600.0


def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set() -> None:
    fired: list[int] = []

    async def main() -> None:
        for number in range(50):
            asyncio.get_running_loop().call_at(1.0, fired.append, number)
        await asyncio.sleep(2.0)

    run(main())
    assert fired == list(range(50))


def test_timeouts_queues_and_task_groups_work() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        queue: asyncio.Queue[int] = asyncio.Queue(1)

        async def put() -> None:
            for number in range(3):
                await queue.put(number)
                await asyncio.sleep(1.0)

        async def take() -> None:
            try:
                async with asyncio.timeout(2.5):
                    while True:
                        number = await queue.get()
                        seen.append(f"{asyncio.get_running_loop().time()}: {number}")
            except TimeoutError:
                seen.append(f"{asyncio.get_running_loop().time()}: over")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(put())
            tasks.create_task(take())
        return seen

    assert run(main()) == ["0.0: 0", "1.0: 1", "2.0: 2", "2.5: over"]


def test_waiting_for_what_nobody_will_do_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"at 0\.000 s"):
        run(main())


def test_a_loop_that_lets_no_time_pass_ends_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.loop.STEPS_MAX", 500)

    async def main() -> None:
        while True:  # noqa: ASYNC110 - the fault that is to be found
            await asyncio.sleep(0)

    with pytest.raises(StepsExceeded):
        run(main())


def test_a_stopped_process_does_nothing_while_time_goes_on_and_then_catches_up() -> None:
    loop = VirtualLoop()
    seen: list[float] = []

    async def main() -> None:
        process = owner(loop)
        clock = SimulatedClock(process)
        start = clock.monotonic()

        async def tick() -> None:
            for _ in range(3):
                await clock.sleep(1.0)
                seen.append(round(clock.monotonic() - start, 3))

        process.start(tick())
        await asyncio.sleep(1.5)
        process.stop()
        await asyncio.sleep(10.0)
        assert seen == [1.0]
        process.go_on()
        await asyncio.sleep(2.0)

    run(main(), loop)
    assert seen == [1.0, 11.5, 12.5]


def test_a_killed_process_unwinds_without_being_heard() -> None:
    loop = VirtualLoop()
    seen: list[str] = []

    async def main() -> int:
        process = owner(loop)
        clock = SimulatedClock(process)

        async def work() -> None:
            try:
                await clock.sleep(100.0)
            finally:
                seen.append("unwinds")
                await clock.sleep(0.0)
                seen.append("is heard")

        task = process.start(work())
        await asyncio.sleep(1.0)
        steps = loop.steps
        process.kill()
        await asyncio.sleep(1.0)
        assert task.cancelled()
        assert not process.tasks
        return loop.steps - steps

    # Waking this test's own task is all that was counted.
    assert run(main(), loop) <= 3
    assert seen == ["unwinds"]


def test_tasks_that_a_process_makes_are_its_own() -> None:
    loop = VirtualLoop()
    seen: list[str] = []

    async def main() -> None:
        process = owner(loop)

        async def child() -> None:
            await asyncio.sleep(2.0)
            seen.append("child")

        async def work() -> None:
            await asyncio.gather(child(), asyncio.create_task(child()))

        process.start(work())
        await asyncio.sleep(1.0)
        process.kill()
        await asyncio.sleep(5.0)

    run(main(), loop)
    assert seen == []


def test_sets_of_tasks_are_iterated_in_one_order() -> None:
    async def main() -> list[int]:
        tasks = {asyncio.ensure_future(asyncio.sleep(0)) for _ in range(40)}
        await asyncio.wait(tasks)
        return [task.number for task in tasks]  # type: ignore[attr-defined]

    assert run(main()) == run(main())


def test_a_callback_that_fails_is_kept() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1.0)

    run(main(), loop)
    assert "ZeroDivisionError" in loop.failures[0]
