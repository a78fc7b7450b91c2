"""The one place that reads the process environment."""

from __future__ import annotations

import os
from collections.abc import Mapping


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with ``extra`` laid over it, for a child process."""
    return {**os.environ, **extra}
