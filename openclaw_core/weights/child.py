"""Stages that need megatron run in a process of their own: the CPU shim changes torch for the whole process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

from openclaw_core.weights.errors import WeightsError

Log = Callable[[str], None]
"""Takes one line of progress, for a person."""


def run_module(module: str, arguments: Sequence[str], log: Log, deadline_s: float) -> None:
    """Run ``python -m module`` to its end, passing its output lines to ``log``. It does not outlive this call.

    Raises:
        WeightsError: it failed or did not end in time; the message has its last line.
    """
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    tail: deque[str] = deque(["no output"], maxlen=1)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    late = threading.Event()
    timer = threading.Timer(deadline_s, lambda: (late.set(), process.kill()))
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                tail.append(line.strip())
                log(line.rstrip())
        code = process.wait()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
    if late.is_set():
        raise WeightsError(f"{module} did not end within {deadline_s:.0f} s; its last line: {tail[-1]}")
    if code != 0:
        raise WeightsError(tail[-1] if code == 1 else f"{module} ended with exit code {code}; its last line: {tail[-1]}")
