"""Logs of containers among the run's own: one file for a name, in which what an earlier container wrote stays."""

from __future__ import annotations

from pathlib import Path

from openclaw_core.rundir import write_whole

HEADER = "=== container {} ===\n"


def keep_log(file: Path, container: str, text: str) -> None:
    """Write what the container with this id wrote so far, below what earlier ones of its name wrote."""
    header = HEADER.format(container[:12])
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    earlier, _, _ = before.partition(header)
    write_whole(file, earlier + header + text, 0o644)
