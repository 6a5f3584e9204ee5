"""The error tree on the wire: `ApiError` to `orrery.v1.Status` and a gRPC code, and back."""

import grpc

from protos.orrery.v1.api_pb2 import Status
from services.model.errors import ERROR_BY_REASON, ApiError, Cause, Internal, OutcomeUnknown, Unavailable

STATUS_METADATA_KEY = "orrery-status-bin"

_CODE_BY_REASON: dict[str, grpc.StatusCode] = {
    "BadRequest": grpc.StatusCode.INVALID_ARGUMENT,
    "Forbidden": grpc.StatusCode.PERMISSION_DENIED,
    "Fenced": grpc.StatusCode.PERMISSION_DENIED,
    "NotFound": grpc.StatusCode.NOT_FOUND,
    "AlreadyExists": grpc.StatusCode.ALREADY_EXISTS,
    "Conflict": grpc.StatusCode.ABORTED,
    "Expired": grpc.StatusCode.OUT_OF_RANGE,
    "RequestEntityTooLarge": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "Invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "TooManyRequests": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ServiceUnavailable": grpc.StatusCode.UNAVAILABLE,
    "Timeout": grpc.StatusCode.DEADLINE_EXCEEDED,
    "InternalError": grpc.StatusCode.INTERNAL,
}
_REASON_BY_CODE: dict[grpc.StatusCode, type[ApiError]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: OutcomeUnknown,
    grpc.StatusCode.CANCELLED: OutcomeUnknown,
    grpc.StatusCode.INTERNAL: Internal,
    **{_CODE_BY_REASON[reason]: cls for reason, cls in ERROR_BY_REASON.items() if reason in ("NotFound", "BadRequest")},
}


def status_of(error: ApiError) -> Status:
    """The message that stands for `error` in batches and in gRPC details."""
    status = Status(
        code=error.http_code,
        reason=error.reason,
        message=error.message,
        retry_after_seconds=error.retry_after_seconds,
        resource_version=error.resource_version,
    )
    for cause in error.causes:
        status.causes.add(reason=cause.reason, message=cause.message, field=cause.field)
    return status


def error_of(status: Status) -> ApiError:
    """The error that `status` stands for, in its class."""
    return ERROR_BY_REASON.get(status.reason, Internal)(
        status.message,
        causes=tuple(Cause(cause.field, cause.reason, cause.message) for cause in status.causes),
        retry_after_seconds=status.retry_after_seconds,
        resource_version=status.resource_version,
    )


def grpc_code(error: ApiError) -> grpc.StatusCode:
    """The gRPC code of an error's class."""
    return _CODE_BY_REASON[error.reason]


def error_of_code(code: grpc.StatusCode, message: str) -> ApiError:
    """The nearest class for a gRPC error that carries no Status of ours."""
    return _REASON_BY_CODE.get(code, Internal)(message)
