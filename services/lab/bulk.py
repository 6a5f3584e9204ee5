"""Creating many objects while servers come and go.

Objects go in batches, a few batches at a time. What certainly did not happen, and what may have happened, is submitted
again; since each object has its own name, it cannot be created twice, and "already exists" is then the answer to an
attempt of ours whose first answer was lost.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protos.orrery.v1.api_pb2 import Operation
from services.client.api import ApiClient
from services.client.backoff import Backoff
from services.lab.connect import Session
from services.lab.errors import LabError
from services.model.errors import AlreadyExists, ApiError, OutcomeUnknown, TooManyRequests, Unavailable

BATCH_OPERATIONS_MAX = 100
BATCHES_IN_FLIGHT_MAX = 4
ATTEMPTS_MAX = 200
BACKOFF_SECONDS_MAX = 1.0
_AGAIN = {error.reason for error in (Unavailable, OutcomeUnknown, TooManyRequests)}


@dataclass(slots=True)
class BulkResult:
    """`existed` counts objects that were there before (a replay that is run again finds its own)."""

    created: int = 0
    existed: int = 0
    resubmitted: int = 0
    latencies: list[float] = field(default_factory=list)


async def create_all(
    client: Session,
    operations: Sequence[Operation],
    on_done: Callable[[int], None],
    *,
    batch: int = BATCH_OPERATIONS_MAX,
) -> BulkResult:
    """Creates everything, in order of batches; `on_done` is told how many more are there.

    Raises:
        LabError: the API server refused one for good, or none answered for long.
    """
    result = BulkResult()
    batches = [operations[start : start + batch] for start in range(0, len(operations), batch)]
    slots = asyncio.Semaphore(BATCHES_IN_FLIGHT_MAX)

    async def submit(part: Sequence[Operation]) -> None:
        try:
            await _create_batch(client, part, result, on_done)
        finally:
            slots.release()

    try:
        async with asyncio.TaskGroup() as tasks:
            for part in batches:
                await slots.acquire()
                tasks.create_task(submit(part))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return result


async def _create_batch(
    client: Session, part: Sequence[Operation], result: BulkResult, on_done: Callable[[int], None]
) -> None:
    left = list(part)
    backoff = Backoff(client.rng, seconds_max=BACKOFF_SECONDS_MAX)
    first = True
    for _ in range(ATTEMPTS_MAX):
        begun = client.clock.monotonic()
        again = await _attempt(client.api, left, result, first_attempt=first)
        result.latencies.append(client.clock.monotonic() - begun)
        on_done(len(left) - len(again))
        if not again:
            return
        first = False
        result.resubmitted += len(again)
        left = again
        await client.clock.sleep(backoff.next_seconds())
    raise LabError(
        f"{len(left)} objects could not be created: no API server answers for long; look with: orrery status"
    )


async def _attempt(
    api: ApiClient, operations: list[Operation], result: BulkResult, *, first_attempt: bool
) -> list[Operation]:
    """Submits once and returns what has to be submitted again."""
    try:
        answers = await api.batch(operations)
    except (Unavailable, OutcomeUnknown, TooManyRequests):
        return operations
    except ApiError as error:
        raise LabError(f"a batch of objects was refused: {error.message}") from error
    again = []
    for operation, answer in zip(operations, answers, strict=True):
        if answer.HasField("done"):
            result.created += 1
        elif answer.status.reason == AlreadyExists.reason:
            result.existed += first_attempt
            result.created += not first_attempt
        elif answer.status.reason in _AGAIN:
            again.append(operation)
        else:
            raise LabError(f"an object was refused: {answer.status.message}")
    return again
