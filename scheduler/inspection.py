"""The SchedulerInspection service: what a running scheduler tells about itself."""

from collections.abc import Callable

from protos.orrery.v1 import scheduler_pb2
from protos.orrery.v1.scheduler_pb2 import (
    ExplainRequest,
    ExplainResponse,
    GetConfigurationRequest,
    ReloadConfigurationRequest,
    SchedulerConfigurationStatus,
    SchedulerStatus,
    SchedulerStatusRequest,
)
from scheduler.attempts import AttemptLog
from scheduler.reloading import ConfigurationKeeper
from services.model.errors import NotFound
from services.runtime.transport import CallContext

DESCRIPTOR = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerInspection"]


class InspectionService:
    """`status` makes the current SchedulerStatus."""

    def __init__(
        self, status: Callable[[], SchedulerStatus], attempts: AttemptLog, configuration: ConfigurationKeeper
    ) -> None:
        self._status = status
        self._attempts = attempts
        self._configuration = configuration

    async def Status(self, _request: SchedulerStatusRequest, _context: CallContext) -> SchedulerStatus:
        return self._status()

    async def Explain(self, request: ExplainRequest, _context: CallContext) -> ExplainResponse:
        attempts = self._attempts.get(f"{request.namespace}/{request.name}", request.uid)
        if not attempts:
            raise NotFound(f"this scheduler remembers no attempt to place {request.namespace}/{request.name}")
        return ExplainResponse(attempts=attempts)

    async def ReloadConfiguration(
        self, _request: ReloadConfigurationRequest, _context: CallContext
    ) -> SchedulerConfigurationStatus:
        self._configuration.look()
        return self._configuration.status()

    async def GetConfiguration(
        self, _request: GetConfigurationRequest, _context: CallContext
    ) -> SchedulerConfigurationStatus:
        return self._configuration.status()
