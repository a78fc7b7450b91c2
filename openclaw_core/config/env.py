"""The one place that reads the process environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

EXTERNAL_KEYS = {
    "judge": ("OPENCLAW_JUDGE_API_KEY",),
    "simulator": ("OPENCLAW_SIMULATOR_API_KEY", "ARK_API_KEY"),
}
"""Keys of others' services: what for → variables that may hold it, the first one set counts."""


def external_keys() -> dict[str, str]:
    """The keys of others' services that the environment holds, by what for. An empty variable is none."""
    found = {what: next(filter(None, map(os.environ.get, names)), None) for what, names in EXTERNAL_KEYS.items()}
    return {what: key for what, key in found.items() if key}


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with ``extra`` laid over it, for a child process."""
    return {**os.environ, **extra}
