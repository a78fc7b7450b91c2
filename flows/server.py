"""A restart of Prefect's server, while a training goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger

ABSENCE_S = 1800.0
"""How long the server may be away."""
POLL_S = 2.0


def through_restarts(run_step: Callable[[], object]) -> None:
    """Run a step, and once more when the server is back where it was away: the service does nothing twice.

    Prefect itself waits only on a connection that has been used before, and a subflow begins with a new one. What httpx raises
    here is of Prefect: the service's own silence is a ControlError.
    """
    while True:
        try:
            run_step()
        except httpx.TransportError as error:
            get_run_logger().warning("Prefect's server does not answer (%s); the step is asked for again when it does", error)
            _await_server()
        else:
            return


def _await_server() -> None:
    """Raises what the last try raised where it does not answer within ABSENCE_S."""
    end = time.monotonic() + ABSENCE_S
    with get_client(sync_client=True) as client:
        while (error := client.api_healthcheck()) is not None:
            if time.monotonic() > end:
                raise error
            time.sleep(POLL_S)
