"""An environment that says nothing of a run, for tests of what variables say."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from openclaw_core.config.legacy import HINTS, KEYS, PARAMETERS, RETIRED

EARLIER = {*PARAMETERS, *HINTS, *KEYS, *RETIRED}
"""The names of the earlier scripts."""
Ask = Callable[..., None]
"""Sets variables."""


def silent(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Sets variables in an environment that says nothing else."""
    for name in [*os.environ]:
        if name.upper() in EARLIER or name.startswith("OPENCLAW_"):
            monkeypatch.delenv(name)

    def variables(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return variables
