"""All trackers of a run: each is told every step once, over all processes that drive the run, and none can end it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout

import structlog

from openclaw_core.config import RunConfig
from openclaw_core.report.series import Row
from openclaw_core.rundir import RunDir, write_whole
from openclaw_core.tracking.opening import open_tracker
from openclaw_core.tracking.packages import tracker_names
from openclaw_core.tracking.protocol import Tracker, scalars

log = structlog.get_logger(__name__)

Open = Callable[[str, RunConfig, RunDir], Tracker]


class Trackers:
    """Told all steps that there are, it passes on to each tracker those that it has not been told yet."""

    def __init__(self, config: RunConfig, run: RunDir, open_one: Open = open_tracker) -> None:
        self._config, self._run, self._open_one = config, run, open_one
        self._open: dict[str, Tracker] = {}
        self._failed: set[str] = set()
        self._file = run.tracking / "position.json"
        self._position: dict[str, int] = json.loads(self._file.read_text()) if self._file.exists() else {}
        """The last step that each was told."""

    def log(self, rows: Sequence[Row]) -> None:
        """``rows``: steps in order, those that were told before among them."""
        for name in tracker_names(self._config):
            for row in rows:
                if name not in self._failed and row["step"] > self._position.get(name, 0):
                    self._tell(name, row)

    def close(self) -> None:
        """End this process's part in all of them."""
        for name, tracker in self._open.items():
            if name not in self._failed:
                self._guarded(name, tracker.close)
        self._open.clear()

    def _tell(self, name: str, row: Row) -> None:
        # Noted before it is told: a process that is killed between the two leaves a step out rather than telling it twice.
        self._note(name, row["step"])

        def tell() -> None:
            if name not in self._open:
                self._open[name] = self._open_one(name, self._config, self._run)
            self._open[name].log(row["step"], scalars(row))

        if not self._guarded(name, tell):
            self._note(name, row["step"] - 1)  # the next process that drives the run begins here

    def _note(self, name: str, step: int) -> None:
        self._position[name] = step
        self._run.tracking.mkdir(exist_ok=True)
        write_whole(self._file, json.dumps(self._position), mode=0o644)

    def _guarded(self, name: str, call: Callable[[], object]) -> bool:
        """Whether it succeeded. A tracker that raises is not told anything more by this process."""
        try:
            with redirect_stdout(sys.stderr):  # some of them greet; standard output is for results
                call()
        except Exception as error:  # of others' packages, which raise what they like
            self._failed.add(name)
            log.warning(
                "tracker_failed",
                tracker=name,
                reason=str(error),
                consequence="not told any more; metrics.jsonl has all",
                exc_info=True,
            )
            return False
        return True
