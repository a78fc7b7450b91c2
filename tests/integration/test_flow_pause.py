"""`python -m flows.pause` where it cannot do what it is asked; what it does is a drill (tests/drills/test_stops.py)."""

from __future__ import annotations

import pytest
from prefect.client.orchestration import get_client
from prefect.states import Completed
from typer.testing import CliRunner

from flows.openclaw import openclaw
from flows.pause import PauseError, app

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.mark.parametrize("command", ["suspend", "resume"])
def test_a_run_that_is_not_there(command: str):
    result = CliRunner().invoke(app, [command, "nobody"])
    assert isinstance(result.exception, PauseError)
    assert "has no run 'nobody'" in str(result.exception)


@pytest.mark.parametrize("command", ["suspend", "resume"])
def test_a_run_that_is_over(command: str):
    with get_client(sync_client=True) as client:
        client.create_flow_run(openclaw, name="over", state=Completed())
    result = CliRunner().invoke(app, [command, "over"])
    assert isinstance(result.exception, PauseError)
    assert "run 'over' stays as it is: " in str(result.exception)
