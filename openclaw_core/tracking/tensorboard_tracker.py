"""TensorBoard: event files in the run's directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorBoard:
    """One event a step, with all of its numbers; a process writes a file of its own."""

    def __init__(self, directory: Path) -> None:
        self._writer = EventFileWriter(str(directory))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Tracker. In the file when this returns."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """See Tracker."""
        self._writer.close()
