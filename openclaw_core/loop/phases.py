"""Runs the loop's verbs on request, each once per step however often it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from openclaw_core.loop import PHASES
from openclaw_core.loop.loop import Loop

log = structlog.get_logger(__name__)


class PhaseConflict(ValueError):
    """A phase was asked for out of order; the message says what comes next."""


class PhaseRunner:
    """One execution per (step, phase): repeated requests attach to it. A failed phase is tried anew by the next request."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._tasks: dict[tuple[int, str], asyncio.Task[dict[str, Any]]] = {}
        self.current: tuple[int, str] | None = None

    async def run(self, step: int, phase: str, wait_s: float) -> dict[str, Any] | None:
        """The phase's result, or None if it is still at work after ``wait_s`` seconds.

        Raises PhaseConflict for a phase out of order, and whatever the phase itself raised.
        """
        task = self._tasks.get((step, phase))
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._start(step, phase)
        done, _ = await asyncio.wait({task}, timeout=wait_s)
        if task.cancelled():
            raise PhaseConflict(f"{phase} of step {step} was broken off: the service is stopping")
        return task.result() if done else None

    async def finish(self) -> None:
        """Let the phase at work end; its failure has been told to whoever asked for it.

        A collection is broken off: it may have to wait for ever, and what it has collected is in the ledger.
        """
        if self.current is not None and self.current[1] == "collect":
            self._tasks[self.current].cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _start(self, step: int, phase: str) -> asyncio.Task[dict[str, Any]]:
        if phase not in PHASES:
            raise PhaseConflict(f"no phase {phase!r}; the phases are: {', '.join(PHASES)}")
        next_step = self._loop.ledger.next_step()
        steps = self._loop.config.train.steps
        if not 1 <= step <= min(next_step, steps):
            raise PhaseConflict(f"step {step} is not to be run: the next one is {next_step} of {steps}")
        running = [key for key, task in self._tasks.items() if not task.done()]
        if running:
            raise PhaseConflict(f"step {running[0][0]} is in phase {running[0][1]!r}; {phase!r} of step {step} comes after it")
        verbs: dict[str, Callable[[int], Awaitable[dict[str, Any]]]] = {name: getattr(self._loop, name) for name in PHASES}
        task = asyncio.create_task(self._run(step, phase, verbs[phase]))
        self._tasks = {key: old for key, old in self._tasks.items() if key[0] >= step - 1}
        self._tasks[(step, phase)] = task
        return task

    async def _run(self, step: int, phase: str, verb: Callable[[int], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        self.current = (step, phase)
        log.info("phase_started", step=step, phase=phase)
        try:
            return await verb(step)
        finally:
            self.current = None
