"""What the service and its ranks write, on the run's page in Prefect while it is being written."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import structlog
from prefect.logging import get_run_logger

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.job import ServiceJob
from openclaw_core.cluster.log_lines import LogLines
from openclaw_core.config import RunConfig
from openclaw_core.rundir import RunDir

log = structlog.get_logger(__name__)

LOOK_S = 5.0
"""Between two looks. Ray gives a log as a whole: of a long one, at most a twentieth of the time goes into reading it."""


@contextlib.contextmanager
def service_log_shown(config: RunConfig, run: RunDir) -> Iterator[None]:
    """For the duration of the block, in a thread; what is new at its end is shown as well."""
    logger, lines, ended = get_run_logger(), LogLines(), threading.Event()

    def show() -> None:
        try:
            found = ServiceJob(config, run).latest_log()
        except ClusterError as error:  # Ray may be on its way up, or be made anew
            log.debug("service_log_not_read", reason=str(error))
            return
        if found is not None:
            for line in lines.new(*found):
                logger.log(line.level, line.text)

    def keep_showing() -> None:
        while not ended.is_set():
            begun = time.monotonic()
            show()
            ended.wait(max(LOOK_S, 20 * (time.monotonic() - begun)))
        show()

    thread = threading.Thread(target=keep_showing, name="service-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)
