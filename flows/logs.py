"""The library's log lines on the run's page in Prefect."""

from __future__ import annotations

import structlog


def log_to_prefect() -> None:
    """Hand structlog's events to the standard loggers of their modules.

    PREFECT_LOGGING_EXTRA_LOGGERS (prefect.yaml) brings them from there to the page of the task that is running.
    """
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
