"""Following one flow run through Prefect's API and the service's control API, and showing it."""

from __future__ import annotations

import re
import time
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, TaskRunFilter, TaskRunFilterTags
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import TaskRunSort
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flows.progress import PlainProgress, Snapshot, StageView, headline
from openclaw_core.config import RunConfig
from openclaw_core.loop.client import ControlClient, ControlError, ServiceStatus
from openclaw_core.rundir import RunDir

POLL_S = 1.0
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
    """Show the run until it has ended; redrawn in place on a terminal, as lines elsewhere."""
    return _follow_live(watch, console) if console.is_terminal else _follow_plain(watch, console)


def _follow_plain(watch: Watch, console: Console) -> FlowRun:
    progress = PlainProgress()
    while True:
        flow_run = watch.flow_run()
        ended = flow_run.state is not None and flow_run.state.is_final()
        for line in progress.lines(watch.snapshot()):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if ended:
            return flow_run
        time.sleep(POLL_S)


def _follow_live(watch: Watch, console: Console) -> FlowRun:
    spinner = Spinner("dots")
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            flow_run = watch.flow_run()
            ended = flow_run.state is not None and flow_run.state.is_final()
            snapshot = watch.snapshot()
            spinner.update(text=Text(headline(snapshot)))
            live.update(Group(_table(snapshot), *([] if ended else [spinner])))
            if ended:
                return flow_run
            time.sleep(POLL_S)


def _table(snapshot: Snapshot) -> Table:
    table = Table.grid(padding=(0, 1))
    for stage in snapshot.stages:
        detail = stage.message if stage.ended else ""
        table.add_row(
            _MARKS.get(stage.state, "[yellow]…"), Text(stage.name), Text(stage.state.lower(), "dim"), Text(detail, "dim")
        )
    return table
