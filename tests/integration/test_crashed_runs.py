"""The automation for flow runs that end without a word, on a real Prefect server."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events import emit_event
from prefect.states import Running

from flows import crashed

pytestmark = [pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(180)]


@flow(name="without-a-word")
def without_a_word() -> None:
    """Never called: its run is made by the test, and nobody works on it."""


def test_a_run_whose_heartbeat_stops_is_crashed_and_one_that_never_had_any_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crashed, "SILENCE", timedelta(seconds=10))
    crashed.keep_automation()
    crashed.keep_automation()
    with get_client(sync_client=True) as client:
        assert len(client.read_automations_by_name(crashed.NAME)) == 1
        dead, step = (client.create_flow_run(without_a_word, state=Running()) for _ in range(2))
        emit_event("prefect.flow-run.heartbeat", {"prefect.resource.id": f"prefect.flow-run.{dead.id}"})
        end = time.monotonic() + 120
        while (state := client.read_flow_run(dead.id).state) is None or state.type is not StateType.CRASHED:
            assert time.monotonic() < end, state
            time.sleep(1)
        assert state.message is not None and "no heartbeat for 10 s" in state.message
        other = client.read_flow_run(step.id).state
        assert other is not None and other.type is StateType.RUNNING
