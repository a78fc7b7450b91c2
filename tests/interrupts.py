"""Children of tests that are to be interrupted."""

from __future__ import annotations

import signal


def interruptible() -> None:
    """``preexec_fn``: where the tests run in the background of a shell, SIGINT is ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
