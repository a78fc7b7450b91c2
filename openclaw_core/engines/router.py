"""Several engines as one: sessions stay where their prefix is cached, and an engine that fails comes back by itself.

An engine that fails is taken out, ended, started again, given the weights that the others serve, asked for their version,
and only then put back: one with other weights never answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from openclaw_core.engines.protocol import (
    EngineAborted,
    EngineError,
    EngineFull,
    EngineLost,
    GenerateRequest,
    OwnedEngine,
    RequestRefused,
    Tokens,
)
from openclaw_core.errors import OpenClawError

log = structlog.get_logger(__name__)

StartEngine = Callable[[], Awaitable[OwnedEngine]]
"""Starts an engine with the start model and returns it once it can serve. Raises EngineError."""

WeightsAgain = Callable[[int], Awaitable[Any]]
"""A published version once more, from whoever has it now; None where it is not the newest any more. Raises OpenClawError."""

_SESSIONS = 100_000
"""Sessions whose engine is remembered."""
_POLL_S = 5.0
"""Between two looks at an engine that answers nothing at the time."""
_LONGEST_PAUSE_S = 60.0
"""Between two attempts to start an engine, which double from one second."""


class _NotLoaded(EngineError):
    """An engine that was started again did not take the published weights."""


class SlotState(StrEnum):
    """What an engine is doing."""

    STARTING = "starting"
    """Its process starts, or takes the present weights."""
    READY = "ready"


@dataclass(eq=False)
class Slot:
    """The place of one engine: the process in it may change."""

    name: str
    start: StartEngine
    engine: OwnedEngine | None = None
    state: SlotState = SlotState.STARTING
    in_flight: int = 0
    restarts: int = 0
    version: int | None = None
    """Of the weights that it took last; None while it has none but the start model's."""


class Router:
    """An ``Engine`` over one or more. ``wait_s``: how long a request waits where no engine is ready.

    ``weights_again`` is asked where an engine that comes back cannot load what was published: its sender may be gone too.
    """

    def __init__(
        self, starts: Iterable[tuple[str, StartEngine]], *, wait_s: float, weights_again: WeightsAgain | None = None
    ) -> None:
        self.slots = [Slot(name, start) for name, start in starts]
        self._wait_s = wait_s
        self._weights_again = weights_again
        self._weights: tuple[Any, int, str] | None = None
        """What was published last, its version and its checksum; None while all serve the start model."""
        self._paused = False
        self._publishing = asyncio.Lock()
        self._sessions: OrderedDict[str, Slot] = OrderedDict()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start all engines and watch them. Raises EngineError where one does not start."""
        try:
            await asyncio.gather(*(self._start_engine(slot) for slot in self.slots))
        except BaseException:
            await self.close()
            raise
        for slot in self.slots:
            slot.state = SlotState.READY
        self._do(self._watch())

    async def close(self) -> None:
        """End all engines."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(slot.engine.close() for slot in self.slots if slot.engine))

    @property
    def ready(self) -> list[Slot]:
        """The engines that can be asked."""
        return [slot for slot in self.slots if slot.state is SlotState.READY]

    def status(self) -> list[dict[str, Any]]:
        """For GET /status: what each engine is doing, the requests that it answers, and the weights that it has."""
        return [
            {
                "name": slot.name,
                "state": slot.state.value,
                "in_flight": slot.in_flight,
                "restarts": slot.restarts,
                "version": slot.version,
            }
            for slot in self.slots
        ]

    @property
    def grammars(self) -> bool:
        """See Engine."""
        return all(slot.engine.grammars for slot in self.slots if slot.engine)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        """See Engine. A request without a token out is asked once more, elsewhere if there is another engine.

        Raises EngineLost where the engine fails after that.
        """
        failed: Slot | None = None
        while True:
            slot = await self._choose(request.session_id, avoid=failed)
            begun = False
            slot.in_flight += 1
            try:
                assert slot.engine is not None
                async with aclosing(slot.engine.generate(request)) as pieces:
                    async for tokens in pieces:
                        begun = True
                        yield tokens
                return
            except (EngineAborted, RequestRefused):
                raise
            except EngineFull:
                if failed is not None or len(self.ready) == 1:
                    raise
                failed = slot
            except EngineError as error:
                await self._suspect(slot, error)
                if begun:
                    raise EngineLost(f"{slot.name}: {error}") from error
                if failed is not None:
                    raise
                failed = slot
            finally:
                slot.in_flight -= 1

    async def prefill_logprobs(
        self, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...], temperature: float
    ) -> tuple[float, ...]:
        """See Engine."""
        slot = await self._choose(None)
        assert slot.engine is not None
        return await slot.engine.prefill_logprobs(prompt_ids, response_ids, temperature)

    async def pause(self) -> None:
        """See Engine. One that does not pause is taken out."""
        self._paused = True
        await self._each("pause")

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        """See Engine. One that does not take them is taken out. Raises EngineError where none does."""
        async with self._publishing:
            self._weights = weights, version, checksum
            errors = await self._each("load_weights", weights, version, checksum)
            for slot in self.ready:
                slot.version = version
        if not self.ready:
            raise EngineError(f"no engine has taken version {version}: {'; '.join(errors) or 'none was there'}")

    async def resume(self) -> None:
        """See Engine."""
        self._paused = False
        await self._each("resume")

    async def version(self) -> int:
        """See Engine. Raises EngineError where no engine is ready."""
        if not self.ready:
            raise EngineError(f"no engine is ready: {', '.join(f'{slot.name} is {slot.state}' for slot in self.slots)}")
        return self._weights[1] if self._weights else await self._version_of(self.ready[0])

    async def _choose(self, session_id: str | None, avoid: Slot | None = None) -> Slot:
        """The session's engine, else the one with the fewest requests. Raises EngineFull after ``wait_s`` without one."""
        await self._until_ready()
        ready = [slot for slot in self.ready if slot is not avoid] or self.ready
        known = self._sessions.get(session_id) if session_id else None
        slot = known if known in ready else min(ready, key=lambda slot: slot.in_flight)
        if session_id:
            self._sessions[session_id] = slot
            self._sessions.move_to_end(session_id)
            if len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)
        return slot

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + self._wait_s
        while not self.ready:
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                raise EngineFull(f"no engine was ready for {self._wait_s:g} s") from None

    async def _each(self, method: str, *arguments: Any) -> list[str]:
        """Call all that are ready; those that fail are taken out. Returns what went wrong."""
        slots = self.ready
        results = await asyncio.gather(*(getattr(slot.engine, method)(*arguments) for slot in slots), return_exceptions=True)
        errors: list[str] = []
        for slot, result in zip(slots, results, strict=True):
            if isinstance(result, EngineError):
                errors.append(str(result))
                self._take_out(slot, result)
            elif isinstance(result, BaseException):
                raise result
        return errors

    async def _suspect(self, slot: Slot, error: EngineError) -> None:
        """A request failed there. An engine that still says its version stays: the request may be to blame."""
        if slot.state is not SlotState.READY:
            return
        try:
            await self._version_of(slot)
            log.warning("engine_request_failed", engine=slot.name, reason=str(error))
        except EngineError as silent:
            self._take_out(slot, silent)

    async def _version_of(self, slot: Slot) -> int:
        assert slot.engine is not None
        return await slot.engine.version()

    def _take_out(self, slot: Slot, reason: EngineError) -> None:
        if slot.state is SlotState.READY:
            slot.state = SlotState.STARTING
            log.error("engine_out", engine=slot.name, reason=str(reason))
            self._do(self._bring_back(slot))

    async def _bring_back(self, slot: Slot) -> None:
        pause_s = 1.0
        while True:
            try:
                if slot.engine:
                    await slot.engine.close()
                await self._start_engine(slot)
                try:
                    await self._put_back(slot)
                except _NotLoaded as error:
                    log.warning("weights_not_loaded", engine=slot.name, reason=str(error))
                    await self._renew_weights()
                    await self._put_back(slot)
                return
            except EngineError as error:
                log.error("engine_not_back", engine=slot.name, reason=str(error), next_in_s=pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _put_back(self, slot: Slot) -> None:
        """Give it the present weights; no publish comes in between."""
        engine = slot.engine
        assert engine is not None
        async with self._publishing:
            if self._weights:
                weights, version, checksum = self._weights
                await engine.pause()
                try:
                    await engine.load_weights(weights, version, checksum)
                except EngineError as error:
                    raise _NotLoaded(str(error)) from error
                if (found := await engine.version()) != version:
                    raise EngineError(f"{slot.name} serves version {found} after it was given {version}")
                slot.version = version
            await (engine.pause() if self._paused else engine.resume())
            slot.state, slot.restarts = SlotState.READY, slot.restarts + 1
            self._changed.set()
        log.info("engine_back", engine=slot.name, restarts=slot.restarts)

    async def _renew_weights(self) -> None:
        """Not under the lock of a publish, which may be what the sender is busy with."""
        if self._weights is None or self._weights_again is None:
            return
        present = self._weights
        try:
            weights = await self._weights_again(present[1])
        except OpenClawError as error:
            log.error("no_weights_for_engine", version=present[1], reason=str(error))
            return
        if weights is not None and self._weights is present:
            self._weights = weights, present[1], weights.checksum

    async def _start_engine(self, slot: Slot) -> None:
        slot.version = None
        slot.engine = await slot.start()

    async def _watch(self) -> None:
        """Find engines that died while nobody asked them. Not during a publish: a paused engine may not answer."""
        while True:
            await asyncio.sleep(_POLL_S)
            idle = [slot for slot in self.ready if not slot.in_flight and not self._paused]
            for slot in idle:
                try:
                    await self._version_of(slot)
                except EngineError as error:
                    if not self._paused:
                        self._take_out(slot, error)

    def _do(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
