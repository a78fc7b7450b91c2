"""What Prefect is told of a run's health: an event for automations to act on, and a pause where the policy wants one."""

from __future__ import annotations

from collections.abc import Callable

from prefect.events import emit_event
from prefect.flow_runs import pause_flow_run
from prefect.logging import get_run_logger

from openclaw_core.health.status import HealthStatus, stop_if_ill

HOLD_S = 7 * 24 * 3600
"""How long a held run waits for somebody to resume it, before it fails and wants a retry."""
POLL_S = 5


def react(run_id: str) -> Callable[[HealthStatus], None]:
    """For ``drive``, called inside the flow run that may be held."""

    def on_health(health: HealthStatus) -> None:
        if health.changed:
            get_run_logger().warning("%s", health.in_words())
            tell(run_id, health)
        if health.action == "pause":
            pause_flow_run(timeout=HOLD_S, poll_interval=POLL_S, key=f"health-{health.step}")
        else:
            stop_if_ill(health)

    return on_health


def tell(run_id: str, health: HealthStatus) -> None:
    """Emit ``openclaw.health.<state>``; its payload is the verdict."""
    resource = {"prefect.resource.id": f"openclaw.run.{run_id}", "prefect.resource.name": run_id}
    payload = {"run": run_id, "text": health.in_words(), **health.model_dump(mode="json")}
    emit_event(f"openclaw.health.{health.state}", resource=resource, payload=payload)
