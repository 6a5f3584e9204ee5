"""The one tree of refusals and faults that cross a process boundary.

Each class is a Kubernetes status reason. The transport maps a raised `ApiError` to a gRPC status with `Status` details
and back to the same class on the other side, so that a caller catches `NotFound` whether the server is across a socket
or in the same simulation. A refusal inside a core is a returned value, not one of these.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Cause:
    """One wrong field: `field` is its path (spec.containers[0].image), `reason` a Kubernetes cause (FieldValueInvalid)."""

    field: str
    reason: str
    message: str


class ApiError(Exception):
    """A status other than success. `http_code` and `reason` are those of metav1.Status."""

    http_code: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        causes: tuple[Cause, ...] = (),
        retry_after_seconds: int = 0,
        resource_version: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.causes = causes
        self.retry_after_seconds = retry_after_seconds
        self.resource_version = resource_version


class BadRequest(ApiError):
    """The request cannot be understood: unknown resource, bad selector, bad token."""

    http_code = 400
    reason = "BadRequest"


class Forbidden(ApiError):
    """Understood and refused: the caller may not do this."""

    http_code = 403
    reason = "Forbidden"


class Fenced(ApiError):
    """The fence's token is not the lease's current epoch: the caller is no longer the leader."""

    http_code = 403
    reason = "Fenced"


class NotFound(ApiError):
    http_code = 404
    reason = "NotFound"


class AlreadyExists(ApiError):
    http_code = 409
    reason = "AlreadyExists"


class Conflict(ApiError):
    """A comparison lost; `resource_version` is the current one when known."""

    http_code = 409
    reason = "Conflict"


class Expired(ApiError):
    """The asked revision is compacted or out of the window: list again."""

    http_code = 410
    reason = "Expired"


class TooLarge(ApiError):
    """The object or the request is over a limit, which the message names."""

    http_code = 413
    reason = "RequestEntityTooLarge"


class Invalid(ApiError):
    """The object breaks a rule; `causes` name the fields."""

    http_code = 422
    reason = "Invalid"


class TooManyRequests(ApiError):
    http_code = 429
    reason = "TooManyRequests"


class Unavailable(ApiError):
    """It certainly did not happen; trying again is safe."""

    http_code = 503
    reason = "ServiceUnavailable"


class OutcomeUnknown(ApiError):
    """It may or may not have happened. Never to be read as a refusal."""

    http_code = 504
    reason = "Timeout"


class Internal(ApiError):
    """Our own fault."""


ERROR_BY_REASON: dict[str, type[ApiError]] = {
    cls.reason: cls
    for cls in (
        BadRequest,
        Forbidden,
        Fenced,
        NotFound,
        AlreadyExists,
        Conflict,
        Expired,
        TooLarge,
        Invalid,
        TooManyRequests,
        Unavailable,
        OutcomeUnknown,
        Internal,
    )
}
