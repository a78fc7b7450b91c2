"""Which trackers a run has, and whether their packages are on the machine that drives it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from openclaw_core.config import ConfigError, RunConfig

TENSORBOARD = "tensorboard"
_REPORT = {TENSORBOARD: "report", "matplotlib": "report"}
"""Package → extra of pyproject.toml."""


def tracker_names(config: RunConfig) -> tuple[str, ...]:
    """The trackers of a run; each is called like its package."""
    return (TENSORBOARD, *config.tracking.use)


def require_report_packages() -> None:
    """Raises ConfigError, naming the extra, where a package is missing that reports are made with."""
    _require(_REPORT, "the report of a run")


def require_packages(config: RunConfig) -> None:
    """The same for a run that is to be driven from this machine, and for its trackers."""
    require_report_packages()
    _require({name: name for name in config.tracking.use}, f"tracking.use={list(config.tracking.use)}")


def _require(packages: Mapping[str, str], what: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        extras = ",".join(dict.fromkeys(packages[package] for package in missing))
        raise ConfigError(f"{what} needs {', '.join(missing)} on this machine: pip install 'openclaw-rl[{extras}]'")
