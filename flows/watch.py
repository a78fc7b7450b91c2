"""Following one flow run through Prefect's API and the service's control API, and showing it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, TaskRunFilter, TaskRunFilterTags
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import TaskRunSort
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flows.local_prefect import RECORDER_FLUSH_S
from flows.progress import PlainProgress, Snapshot, StageView, headline
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.config import RunConfig
from openclaw_core.loop.client import ControlClient, ControlError, ServiceStatus
from openclaw_core.rundir import RunDir

POLL_S = 1.0
SILENCE_S = 300.0
_MARKS = {
    "Completed": "[green]✓",
    "Reused": "[green]✓",
    "Cached": "[green]✓",
    "Skipped": "[dim]–",
    "Failed": "[red]✗",
    "Crashed": "[red]✗",
}
_EXCEPTION = re.compile(r"^(?:Task|Flow) run encountered an exception:? ?(?:\w+: )?", re.DOTALL)


class Watch:
    """One flow run and its service."""

    def __init__(self, client: SyncPrefectClient, flow_run_id: UUID, run: RunDir, config: RunConfig) -> None:
        self.client, self.flow_run_id = client, flow_run_id
        self.run, self.config = run, config

    def flow_run(self) -> FlowRun:
        """The flow run as the server has it now."""
        return self.client.read_flow_run(self.flow_run_id)

    def snapshot(self) -> Snapshot:
        """Stages and service at this moment."""
        return Snapshot(self.stages(), self._service())

    def stages(self) -> tuple[StageView, ...]:
        """The stage tasks in the order they began; of several attempts the last one."""
        runs = self.client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[self.flow_run_id])),
            task_run_filter=TaskRunFilter(tags=TaskRunFilterTags(all_=["stage"])),
            sort=TaskRunSort.EXPECTED_START_TIME_ASC,
        )
        latest = {
            run.name: StageView(run.name, run.state_name or "Pending", (run.state and run.state.message) or "") for run in runs
        }
        return tuple(latest.values())

    def failure(self) -> str:
        """What went wrong, as the stage that failed said it."""
        failed = [stage for stage in self.stages() if stage.state in ("Failed", "Crashed")]
        state = self.flow_run().state
        if failed:
            return f"{failed[-1].name}: {_EXCEPTION.sub('', failed[-1].message)}"
        return _EXCEPTION.sub("", (state and state.message) or "no reason was given")

    def _service(self) -> ServiceStatus | None:
        if not self.run.secrets_file.exists():
            return None
        with ControlClient.of(self.run, self.config) as client:
            try:
                return client.status(silence_s=0)
            except ControlError:  # nobody there yet, or no longer: there is nothing to show
                return None


def follow(watch: Watch, console: Console) -> FlowRun:
    """Show the run until it has ended; redrawn in place on a terminal, as lines elsewhere.

    Raises:
        ClusterError: Prefect has not answered for SILENCE_S.
    """
    show = _show_live if console.is_terminal else _show_lines
    show(console, _moments(watch))
    return watch.flow_run()


def _moments(watch: Watch) -> Iterator[Snapshot]:
    """The run about once a second; the last one is taken after its end."""
    heard, ended = time.monotonic(), False
    while not ended:
        try:
            state = watch.flow_run().state
            ended = state is not None and state.is_final()
            if ended:
                time.sleep(2 * RECORDER_FLUSH_S)  # for the last tasks to be known
            yield watch.snapshot()
            heard = time.monotonic()
        except httpx.TransportError as error:  # a busy machine: the run does not depend on us
            if time.monotonic() - heard > SILENCE_S:
                raise ClusterError(
                    f"Prefect has not answered for {SILENCE_S:g} s: {error}; the run itself may go on"
                ) from error
        time.sleep(POLL_S)


def _show_lines(console: Console, moments: Iterator[Snapshot]) -> None:
    progress = PlainProgress()
    for snapshot in moments:
        for line in progress.lines(snapshot):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _show_live(console: Console, moments: Iterator[Snapshot]) -> None:
    spinner = Spinner("dots")
    with Live(console=console, refresh_per_second=4) as live:
        table = Table.grid()
        for snapshot in moments:
            spinner.update(text=Text(headline(snapshot)))
            table = _table(snapshot)
            live.update(Group(table, spinner))
        live.update(table)


def _table(snapshot: Snapshot) -> Table:
    table = Table.grid(padding=(0, 1))
    for stage in snapshot.stages:
        detail = stage.message if stage.ended else ""
        table.add_row(
            _MARKS.get(stage.state, "[yellow]…"), Text(stage.name), Text(stage.state.lower(), "dim"), Text(detail, "dim")
        )
    return table
