"""The automation that tells a dead flow run from a live one: without it, a run whose machine went down is Running for ever."""

from __future__ import annotations

from datetime import timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

NAME = "openclaw: flow runs without a heartbeat have crashed"
SILENCE = timedelta(seconds=90)
"""Three heartbeats (PREFECT_FLOWS_HEARTBEAT_FREQUENCY in prefect.yaml)."""


def keep_automation() -> None:
    """Have it once on the server; one of that name that a person has changed or switched off is left alone."""
    with get_client(sync_client=True) as client:
        if not client.read_automations_by_name(NAME):
            client.create_automation(automation())


def automation() -> AutomationCore:
    """A run that sent a heartbeat and then nothing, not even a change of its state, becomes Crashed and can be retried.

    Steps send none (train_loop.py) and are never meant.
    """
    trigger = EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*"},  # pyright: ignore[reportArgumentType]
        for_each={"prefect.resource.id"},
        after={"prefect.flow-run.heartbeat"},
        expect={"prefect.flow-run.*"},
        posture=Posture.Proactive,
        threshold=1,
        within=SILENCE,
    )
    told = f"no heartbeat for {SILENCE.total_seconds():.0f} s: its process or its machine has ended; Retry takes it up"
    return AutomationCore(
        name=NAME,
        description="Frees the place of a run that died without a word.",
        trigger=trigger,
        actions=[ChangeFlowRunState(name=None, state=StateType.CRASHED, message=told, force=False)],
    )


if __name__ == "__main__":  # a line of the worker's systemd unit
    keep_automation()
