"""The verdict as the driver of the steps gets it, and what it does where nobody else decides."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from openclaw_core.config.health import Action
from openclaw_core.errors import OpenClawError


class HealthStop(OpenClawError):
    """The health rules ended the run after a step; the message says why, and how it goes on."""


class HealthStatus(BaseModel):
    """How the run is after its last step, and what the policy wants done about what is new."""

    model_config = ConfigDict(frozen=True)
    step: int = 0
    state: Literal["healthy", "warn", "stop"] = "healthy"
    findings: tuple[dict[str, Any], ...] = ()
    """Each with ``text``, in words."""
    raised: tuple[str, ...] = ()
    """Rules that had no finding a step before."""
    changed: bool = False
    """A finding is new, or the state is another than a step before."""
    action: Action | None = None

    def in_words(self) -> str:
        """One line a finding."""
        return "\n".join([f"health after step {self.step}: {self.state}", *(finding["text"] for finding in self.findings)])


def stop_if_ill(health: HealthStatus) -> None:
    """Raises HealthStop where the policy wants the run stopped, or held and nobody can resume it but by a second call."""
    if health.action not in ("stop", "pause"):
        return
    how = "stopped" if health.action == "stop" else "stopped, since only a run in Prefect can be held (pause)"
    raise HealthStop(f"{how}: {health.in_words()}\nA checkpoint is written; a retry goes on from there")
