"""The SchedulerInspection service: what a running scheduler tells about itself."""

from collections.abc import Callable

from protos.orrery.v1 import scheduler_pb2
from protos.orrery.v1.scheduler_pb2 import ExplainRequest, ExplainResponse, SchedulerStatus, SchedulerStatusRequest
from scheduler.attempts import AttemptLog
from services.model.errors import NotFound
from services.runtime.transport import CallContext

DESCRIPTOR = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerInspection"]


class InspectionService:
    """`status` makes the current SchedulerStatus."""

    def __init__(self, status: Callable[[], SchedulerStatus], attempts: AttemptLog) -> None:
        self._status = status
        self._attempts = attempts

    async def Status(self, _request: SchedulerStatusRequest, _context: CallContext) -> SchedulerStatus:
        return self._status()

    async def Explain(self, request: ExplainRequest, _context: CallContext) -> ExplainResponse:
        attempts = self._attempts.get(f"{request.namespace}/{request.name}", request.uid)
        if not attempts:
            raise NotFound(f"this scheduler remembers no attempt to place {request.namespace}/{request.name}")
        return ExplainResponse(attempts=attempts)
