"""structlog to standard error: one JSON object a line, with the ids of the span in which it was logged."""

import logging
import sys
from typing import Any

import structlog
from opentelemetry import trace
from structlog.typing import EventDict, WrappedLogger

Logger = structlog.stdlib.BoundLogger
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _add_span(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


def configure(process: str, level: str) -> Logger:
    """Sets structlog up for this process and returns its root logger.

    `level` is one of debug, info, warning, error.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            _add_span,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logger: Any = structlog.get_logger(process=process)
    return logger  # type: ignore[no-any-return]


def silent() -> Logger:
    """A logger that drops everything, for callers that bring none (simulations, unit tests)."""
    logger: Any = structlog.wrap_logger(structlog.ReturnLogger(), processors=[_drop])
    return logger  # type: ignore[no-any-return]


def _drop(_logger: WrappedLogger, _method: str, _event: EventDict) -> EventDict:
    raise structlog.DropEvent
