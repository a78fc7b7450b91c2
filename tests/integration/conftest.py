"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from prefect.settings import (
    PREFECT_LOGGING_LEVEL,
    PREFECT_RESULTS_LOCAL_STORAGE_PATH,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE,
    PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL,
    temporary_settings,
)
from prefect.testing.utilities import prefect_test_harness


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One server for the session: it takes some ten seconds to start."""
    settings: dict[Any, Any] = {
        PREFECT_LOGGING_LEVEL: "WARNING",
        PREFECT_SERVER_ANALYTICS_ENABLED: False,
        # As `make run` starts its server (flows/local_prefect.py).
        PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE: 100,
        PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL: 1,
        PREFECT_RESULTS_LOCAL_STORAGE_PATH: tmp_path_factory.mktemp("results"),
    }
    with temporary_settings(settings), prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    """Ray on this machine for a module's tests; its address."""
    context = ray.init(
        address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False
    )
    yield context.address_info["gcs_address"]
    ray.shutdown()
