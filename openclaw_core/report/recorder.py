"""What the driver keeps of a run while it goes on: trackers are told, the report is written, whoever watches is shown.

In a thread beside the steps, which it never holds up, and over the control API, since the service may be on another machine.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Protocol

import structlog

from openclaw_core.config import RunConfig
from openclaw_core.loop.client import ControlClient, ServiceSilent, ServiceStatus
from openclaw_core.report.gather import RunRecord, gather, shown_steps
from openclaw_core.report.page import render, run_plots
from openclaw_core.report.samples import StepSamples
from openclaw_core.report.series import Row
from openclaw_core.rundir import RunDir, write_whole
from openclaw_core.tracking.following import Trackers

log = structlog.get_logger(__name__)

LOOK_S = 3.0
"""Between two looks at the service."""
REPORT_S = 60.0
"""Between two reports, at least; and at most a fiftieth of the time goes into making them."""

PATIENCE_S = 60.0
"""How long the end of a run waits for the last report, and for trackers to send what they have."""


class Watcher(Protocol):
    """Who else is shown what goes on."""

    def progress(self, status: ServiceStatus, rows: Sequence[Row]) -> None:
        """Every LOOK_S. ``rows``: all steps so far; the same list grows."""
        ...

    def report(self, record: RunRecord, plots: str, page: Path) -> None:
        """A report was written to ``page``; ``plots`` is an SVG, empty without steps."""
        ...


class Recorder:
    """One driver's record of a run. Not thread-safe: one thread at a time."""

    def __init__(self, config: RunConfig, run: RunDir, client: ControlClient, watchers: Sequence[Watcher] = ()) -> None:
        self._config, self._run, self._client, self._watchers = config, run, client, watchers
        self._trackers = Trackers(config, run)
        self._rows: list[Row] = []
        self._samples: dict[int, StepSamples | None] = {}
        self._reported_step, self._next_report = 0, 0.0

    @property
    def _service_is_elsewhere(self) -> bool:
        """With a run directory of its own."""
        return self._config.cluster.containers

    def look(self) -> None:
        """Take what is new. Raises ServiceSilent where the service does not answer."""
        status = self._client.status(silence_s=0)
        new = self._client.rows(self._rows[-1]["step"] if self._rows else 0, silence_s=0) if status.serving else []
        self._rows += new
        if new and self._service_is_elsewhere:
            self._keep(new)
        self._trackers.log(new)
        for watcher in self._watchers:
            watcher.progress(status, self._rows)
        if len(self._rows) > self._reported_step and time.monotonic() > self._next_report:
            self.report()

    def report(self) -> None:
        """Write the report, out of the files of the run directory."""
        begun, self._reported_step = time.monotonic(), len(self._rows)
        if self._service_is_elsewhere:
            self._keep_samples()
        record = gather(self._run)
        plots = run_plots(record)
        write_whole(self._run.report_file, render(record, plots), mode=0o644)
        for watcher in self._watchers:
            watcher.report(record, plots, self._run.report_file)
        self._next_report = time.monotonic() + max(REPORT_S, 50 * (time.monotonic() - begun))

    def close(self) -> None:
        """A last look, the final report, and the end of the trackers' runs."""
        try:
            with contextlib.suppress(ServiceSilent):  # it has ended: what it told so far stands
                self.look()
            self.report()
        finally:
            self._trackers.close()

    def _keep(self, new: Sequence[Row]) -> None:
        """What is missing of metrics.jsonl; the first time all of it."""
        lines = "".join(json.dumps(row) + "\n" for row in new)
        if len(new) == len(self._rows):
            write_whole(self._run.metrics_file, lines, mode=0o644)
        else:
            with self._run.metrics_file.open("a", encoding="utf-8") as file:
                file.write(lines)

    def _keep_samples(self) -> None:
        steps = shown_steps([row["step"] for row in self._rows])
        self._samples = {step: self._samples.get(step) or self._client.samples(step, silence_s=0) for step in steps}
        kept = [samples for samples in self._samples.values() if samples is not None]
        write_whole(self._run.samples_file, json.dumps(kept), mode=0o644)


@contextlib.contextmanager
def recorded(config: RunConfig, run: RunDir, watchers: Sequence[Watcher] = ()) -> Iterator[None]:
    """Record a run for the duration of the block; at its end once more, so that the report has what was found last."""
    ended = threading.Event()
    with ControlClient.of(run, config) as client:
        recorder, guarded = Recorder(config, run, client, watchers), _Guard()

        def keep_looking() -> None:
            while not ended.wait(LOOK_S):
                guarded(recorder.look)
            guarded(recorder.close)

        thread = threading.Thread(target=copy_context().run, args=(keep_looking,), name="recorder", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(PATIENCE_S)
            if thread.is_alive():
                log.warning("run_not_recorded", reason=f"a tracker or a watcher is busy for more than {PATIENCE_S:g} s")


class _Guard:
    """A record that cannot be kept is no reason to end a run: it is said, once as long as it stays the same."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, call: Callable[[], None]) -> None:
        try:
            call()
        except ServiceSilent as error:  # it is starting, or is being started again
            log.debug("service_not_looked_at", reason=str(error))
        except Exception as error:
            if str(error) != self._said:
                log.warning("run_not_recorded", reason=str(error), exc_info=True)
            self._said = str(error)
