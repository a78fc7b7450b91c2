"""Between gateway and loop: captured turns go to the ledger, next states to the judge, verdicts to the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.judge import Judge
from openclaw_core.ledger import Ledger, TurnStatus
from openclaw_core.loop.judging import Judging
from openclaw_core.loop.looping import repeats, signature
from openclaw_core.loop.samples import HintEncoder, judged_at_all
from openclaw_core.types import DropReason, NextState, Turn

log = structlog.get_logger(__name__)


class Intake:
    """The gateway's turn sink. Judging runs beside the event loop's other work; nothing is lost when a judge is away."""

    def __init__(
        self, ledger: Ledger, judge: Judge, on_change: Callable[[], None], config: RunConfig, encode_hint: HintEncoder
    ) -> None:
        self._ledger = ledger
        self._on_change = on_change
        self._config = config
        self._just_answered: dict[str, asyncio.TimerHandle] = {}
        self._changed = asyncio.Event()
        self.judge = Judging(ledger, judge, self._notify, config, encode_hint)

    def turn(self, turn: Turn) -> None:
        """Store a captured turn (called before the answer's last byte leaves)."""
        self._ledger.add_turn(turn, signature(turn))
        facts, times = self._ledger.session_facts, self._config.judge.loop_repeats
        looping = facts.loops(turn.session_id)
        if not looping and (looping := repeats(self._ledger, turn, times)):
            dropped = facts.mark_loop(turn.session_id, turn.turn_id, self._ledger.next_step())
            self.judge.forget(dropped)
            log.warning("session_loops", session=turn.session_id, turn=turn.turn_id, times=times, dropped=len(dropped))
            self._notify()
        if not looping:  # else it will fill no place in a batch
            grace_s = self._config.rollout.reaction_grace_s
            timer = asyncio.get_running_loop().call_later(grace_s, self._no_longer_expected, turn.turn_id)
            self._just_answered[turn.turn_id] = timer

    def next_state(self, turn_id: str, state: NextState | DropReason) -> None:
        """The reaction to a turn has come, or never will."""
        reason = self._left_out(turn_id, state) if isinstance(state, NextState) else None
        if isinstance(state, NextState) and reason is not None:
            self._ledger.leave_out(turn_id, state, reason)
            log.info("turn_dropped", turn=turn_id, reason=reason.value)
        else:
            self._ledger.set_next_state(turn_id, state)
        if timer := self._just_answered.pop(turn_id, None):
            timer.cancel()
        if isinstance(state, NextState) and reason is None:
            self.judge.ask(turn_id)
        self._notify()

    def known_answer(self, session_id: str) -> None:
        """The ledger has been told the answer of the session's problem: hints that quote it go, where it is not too late."""
        if self.judge.refuse_again(session_id):
            self._notify()

    def resume(self) -> None:
        """After a restart: ask again for the votes that are outstanding."""
        for turn_id in self._ledger.to_judge():
            self.judge.ask(turn_id)

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

    async def changed(self, timeout_s: float) -> None:
        """Wait until something happened, at most ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    async def stop(self) -> None:
        """Cancel outstanding votes; their turns stay in the ledger to be asked again."""
        for timer in self._just_answered.values():
            timer.cancel()
        await self.judge.stop()

    def _left_out(self, turn_id: str, state: NextState) -> DropReason | None:
        """Why a turn is not judged at all, though something came after it."""
        if self._ledger.session_facts.turn_loops(turn_id):
            return DropReason.LOOP
        return None if judged_at_all(turn_id, state, self._config.judge) else DropReason.TOOL_TURN

    def _no_longer_expected(self, turn_id: str) -> None:
        del self._just_answered[turn_id]
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._on_change()
