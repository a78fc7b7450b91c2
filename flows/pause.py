"""`python -m flows.pause`: hold a run, and let it go on; Prefect has both in its UI and not in its CLI."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Suspended

from flows.command import console, run_app
from openclaw_core.errors import OpenClawError

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run, which is the name of its flow run.")]


class PauseError(OpenClawError):
    """A run that is not there, or not in a state to be held or to go on."""


@app.command("suspend")
def suspend_command(
    run: RunId,
    days: Annotated[int, typer.Option(min=1, help="After which it is Failed, and Retry is needed in place of resume.")] = 30,
) -> None:
    """Hold a run where it waits for turns, or else when its step is done. Its service stays up and goes on answering people."""
    state = Suspended(timeout_seconds=round(timedelta(days=days).total_seconds()))
    with get_client(sync_client=True) as client:
        _check(run, client.set_flow_run_state(_flow_run(client, run).id, state))
    when = "when its step is done, or within seconds where it waits for turns"
    console.print(f"{run} stops {when}; `python -m flows.pause resume {run}` lets it go on", soft_wrap=True)


@app.command("resume")
def resume_command(run: RunId) -> None:
    """Let a run go on where it stood."""
    with get_client(sync_client=True) as client:
        _check(run, client.resume_flow_run(_flow_run(client, run).id))
    console.print(f"{run} goes on", soft_wrap=True)


def _flow_run(client: SyncPrefectClient, run: str) -> FlowRun:
    found = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=["openclaw"])),
        flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[run])),
        sort=FlowRunSort.START_TIME_DESC,
        limit=1,
    )
    if not found:
        raise PauseError(
            f"Prefect at {client.api_url} has no run {run!r} of the flow openclaw; `prefect flow-run ls` lists them"
        )
    return found[0]


def _check(run: str, result: OrchestrationResult[object]) -> None:
    if result.status is not SetStateStatus.ACCEPT:
        why = getattr(result.details, "reason", None) or "no reason was given"
        raise PauseError(f"run {run!r} stays as it is: {why}")


if __name__ == "__main__":
    run_app(app)
