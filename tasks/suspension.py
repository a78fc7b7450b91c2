"""When Suspend takes effect: between two steps, or while a step waits for its turns.

Prefect would stop at the next task. Between a full batch and its publish people may wait at the gateway
(rollout.max_staleness 0): a step that has its batch is finished first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import CancelledRun


class Suspension(Protocol):
    """Prefect's note, in the process of a flow run, of a request to suspend it."""

    def raise_if_requested(self) -> None:
        """Raises prefect.exceptions.Pause, which ends the process and leaves the run Suspended."""


_held_off: ContextVar[Suspension | None] = ContextVar("held_off_suspension", default=None)


@contextmanager
def suspended_only_while_waiting() -> Iterator[None]:
    """A subflow that is called in the block runs to its end though its parent is suspended, unless it ends ``suspended()``.

    Raises Pause where the parent is suspended already, and where the subflow ended so.
    """
    parent = FlowRunContext.get()
    assert parent is not None, "to be called in a flow run"
    asked = parent.flow_run_suspension_request
    asked.raise_if_requested()
    # A subflow shares its parent's note: this one is never written to.
    shielded = parent.model_copy(update={"flow_run_suspension_request": type(asked)()})
    token = _held_off.set(asked)
    try:
        with shielded:
            yield
    except CancelledRun:
        asked.raise_if_requested()
        raise
    finally:
        _held_off.reset(token)


def raise_if_suspended() -> None:
    """To be called where a step waits. Raises Pause where the run is suspended."""
    if (asked := _held_off.get()) is not None:
        asked.raise_if_requested()


def suspended() -> State[None]:
    """How a step that was waiting, and its phase, end: Prefect itself would leave them Running."""
    told = "the run was suspended while this step waited for turns; those that have come are kept for its next run"
    return State(type=StateType.CANCELLED, name="Suspended", message=told)
