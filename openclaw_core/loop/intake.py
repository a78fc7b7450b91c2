"""Between gateway and loop: captured turns go to the ledger, next states to the judge, verdicts to the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from openclaw_core.judge.judge import Judge, JudgeUnavailable
from openclaw_core.ledger import Ledger, TurnStatus
from openclaw_core.types import DropReason, NextState, Turn

log = structlog.get_logger(__name__)

JUDGE_RETRY_S = 5.0
"""Pause before a turn whose judge was unavailable is asked again."""


class Intake:
    """The gateway's turn sink. Judging runs beside the event loop's other work; nothing is lost when a judge is away."""

    def __init__(self, ledger: Ledger, judge: Judge, on_change: Callable[[], None], reaction_grace_s: float) -> None:
        self._ledger = ledger
        self._judge = judge
        self._on_change = on_change
        self._grace_s = reaction_grace_s
        self._just_answered: dict[str, asyncio.TimerHandle] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.judged = 0
        """Verdicts since the last ``reset_counts``."""
        self.without_signal = 0

    def turn(self, turn: Turn) -> None:
        """Store a captured turn (called before the answer's last byte leaves)."""
        self._ledger.add_turn(turn)
        timer = asyncio.get_running_loop().call_later(self._grace_s, self._no_longer_expected, turn.turn_id)
        self._just_answered[turn.turn_id] = timer

    def next_state(self, turn_id: str, state: NextState | DropReason) -> None:
        """The reaction to a turn has come, or never will."""
        self._ledger.set_next_state(turn_id, state)
        if timer := self._just_answered.pop(turn_id, None):
            timer.cancel()
        if isinstance(state, NextState):
            self._ask()
        self._notify()

    def resume(self) -> None:
        """After a restart: ask again for the votes that are outstanding."""
        if self._ledger.to_judge():
            self._ask()

    @property
    def expected(self) -> int:
        """Turns answered a moment ago, whose reaction is probably on its way."""
        return len(self._just_answered)

    @property
    def waiting(self) -> int:
        """Turns that nobody has reacted to yet."""
        return self._ledger.count(TurnStatus.WAITING)

    @property
    def judging(self) -> int:
        """Turns whose verdict is outstanding."""
        return self._ledger.count(TurnStatus.JUDGING)

    @property
    def ready(self) -> int:
        """Turns with a signal that wait for a batch."""
        return self._ledger.count(TurnStatus.READY)

    def reset_counts(self) -> None:
        """Start counting verdicts anew (once a step)."""
        self.judged = self.without_signal = 0

    async def changed(self, timeout_s: float) -> None:
        """Wait until something happened, at most ``timeout_s`` seconds."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return
        self._changed.clear()

    async def stop(self) -> None:
        """Cancel outstanding votes; their turns stay in the ledger to be asked again."""
        for timer in self._just_answered.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _no_longer_expected(self, turn_id: str) -> None:
        del self._just_answered[turn_id]
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._on_change()

    def _ask(self) -> None:
        known = {task.get_name() for task in self._tasks}
        for turn, state in self._ledger.to_judge():
            if turn.turn_id not in known:
                task = asyncio.create_task(self._judge_turn(turn, state), name=turn.turn_id)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _judge_turn(self, turn: Turn, state: NextState) -> None:
        while True:
            try:
                judgement = await self._judge.judge(turn, state)
                break
            except JudgeUnavailable as error:
                log.warning(
                    "judge_unavailable", turn=turn.turn_id, session=turn.session_id, reason=str(error), retry_s=JUDGE_RETRY_S
                )
                await asyncio.sleep(JUDGE_RETRY_S)
        self._ledger.add_judgement(judgement)
        self.judged += 1
        self.without_signal += not judgement.has_signal
        self._notify()
