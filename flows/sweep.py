"""Runs that a killed attempt has left Running in Prefect for ever: they are closed when the next attempt begins."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.logging import get_run_logger
from prefect.states import Crashed

OPEN = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING]


def close_left_open(flow_run_id: UUID | str) -> None:
    """Close the steps, stages and phases of earlier attempts of this flow run. To be called before it has begun any.

    A step that was not begun is removed: it has no name yet and would count as a second one.
    """
    flow_run_id = UUID(str(flow_run_id))
    with get_client(sync_client=True) as client:
        parents = FlowRunFilter(
            parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run_id]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=OPEN)),
        )
        steps = client.read_flow_runs(flow_run_filter=parents)
        tasks = [task for parent in (*(step.id for step in steps), flow_run_id) for task in _open_tasks(client, parent)]
        state = Crashed(message="its attempt ended before it did")
        for task in tasks:
            client.set_task_run_state(task, state, force=True)
        for step in steps:
            if step.state_type is StateType.RUNNING or step.run_count:
                client.set_flow_run_state(step.id, state, force=True)
            else:
                client.delete_flow_run(step.id)
    if steps or tasks:
        get_run_logger().info("closed what an earlier attempt left open: %d steps, %d tasks", len(steps), len(tasks))


def _open_tasks(client: SyncPrefectClient, flow_run_id: UUID) -> Iterable[UUID]:
    wanted = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=OPEN)))
    found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])), task_run_filter=wanted)
    return [task.id for task in found]
