"""What a killed attempt has left Running is closed when the next one begins."""

from __future__ import annotations

from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed, Pending, Running

from flows.openclaw import openclaw
from flows.rollout_step import rollout_step
from flows.sweep import close_left_open
from flows.train_loop import train_loop
from tasks.step_phases import PHASE_TASKS

pytestmark = pytest.mark.usefixtures("prefect_server")


def test_open_steps_with_their_phases_and_stages_are_closed_and_the_rest_is_left_alone():
    with get_client(sync_client=True) as client:
        killed = client.create_flow_run(openclaw, state=Running())
        stage = client.create_task_run(train_loop, killed.id, "0", state=Running())

        def step(number: int, state: State) -> UUID:
            parameters = {"run_dir": "r", "step": number}
            return client.create_flow_run(rollout_step, parameters=parameters, parent_task_run_id=stage.id, state=state).id

        done, left, never_begun = step(1, Completed()), step(2, Running()), step(3, Pending())
        phase = client.create_task_run(PHASE_TASKS["collect"], left, "0", state=Running())
        elsewhere = client.create_flow_run(rollout_step, parameters={"run_dir": "other", "step": 1}, state=Running())

        @flow
        def next_attempt() -> None:
            close_left_open(killed.id)

        next_attempt()
        steps = {run: client.read_flow_run(run).state for run in (done, left, elsewhere.id, killed.id)}
        with pytest.raises(ObjectNotFound):
            client.read_flow_run(never_begun)
        tasks = [client.read_task_run(task.id).state for task in (stage, phase)]
    assert [state and state.name for state in steps.values()] == ["Completed", "Crashed", "Running", "Running"]
    assert [state and state.name for state in tasks] == ["Crashed", "Crashed"]
    assert "its attempt ended before it did" in str(steps[left] and steps[left].message)
