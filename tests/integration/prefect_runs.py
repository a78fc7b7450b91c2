"""What the tests of flows ask of Prefect's server."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
)
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry

from flows.local_prefect import RECORDER_FLUSH_S


def task_runs(flow_run_id: UUID) -> list[TaskRun]:
    """The task runs of a flow run in order. Their states reach the API with a delay: waits for it, and until all are final."""
    time.sleep(2 * RECORDER_FLUSH_S)
    end = time.monotonic() + 30
    with get_client(sync_client=True) as client:
        while True:
            runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))
            if runs and all(run.state and run.state.is_final() for run in runs):
                return sorted(runs, key=lambda run: str(run.start_time))
            assert time.monotonic() < end, [(run.name, run.state_name) for run in runs]
            time.sleep(0.2)


def step_runs(parent_id: UUID) -> list[FlowRun]:
    """The rollout-step runs below a flow run, in the order in which they began."""
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=["rollout-step"])),
            flow_run_filter=FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent_id])),
        )
    return sorted(runs, key=lambda run: str(run.start_time))


def retry(flow: Flow[..., Any], flow_run_id: UUID) -> State[Any]:
    """Another attempt of a flow run in this process, as `prefect flow-run retry` does; how it ended."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, AwaitingRetry(), force=True)
        flow_run = client.read_flow_run(flow_run_id)
    return run_flow(flow, flow_run=flow_run, parameters=flow_run.parameters, return_type="state")  # pyright: ignore[reportReturnType]
