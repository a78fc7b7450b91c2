"""An engine in a Ray actor: every wait has a deadline, and whatever goes wrong is an EngineError."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.exceptions import RayActorError, RayError, RayTaskError

from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.engine_actor import EngineActor
from openclaw_core.engines.protocol import EngineError, GenerateRequest, Tokens

log = structlog.get_logger()

_VERSION_DEADLINE_S = 10.0
"""Version and statistics are asked for by health checks; the actor answers at once whatever it is decoding."""
_QUIET_S = 5.0
"""Of an answer that does not come, until the actor is asked whether it is there: Ray notices a lost host after a minute."""
_CONCURRENT_CALLS = 4096
"""Calls that the actor takes at a time: more than a gateway ever admits; batching is the engine's own affair."""


class RayEngine:
    """An engine (``engines.protocol.Engine``) that forwards to an actor.

    ``deadline_s``: how long a request may be without a token, queueing included, and how long any other call may take.
    """

    grammars = False

    def __init__(self, actor: Any, name: str, deadline_s: float) -> None:
        self._actor = actor
        self._name = name
        self._deadline_s = deadline_s
        self._stream: _Stream | None = None
        self._up = False
        """Whether it has ever answered: while it starts, it is not expected to."""

    @classmethod
    def start(
        cls, config: RunConfig, directory: str | Path, name: str = "engine-0", resources: Mapping[str, float] | None = None
    ) -> RayEngine:
        """Start a LocalEngine with the model in ``directory`` as an actor; it loads while others start too.

        ``resources``: of Ray, that decide on which host it is.

        A dead actor is not restarted: it would serve the start weights.
        """
        engine = config.engine
        environment = {"OMP_NUM_THREADS": str(engine.threads), "OMP_WAIT_POLICY": "passive"}
        actor = ray.remote(EngineActor).options(
            num_cpus=0,
            max_restarts=0,
            max_concurrency=_CONCURRENT_CALLS,
            resources=dict(resources or {}),
            runtime_env={"env_vars": environment},
        )
        options = {
            "dtype": engine.dtype,
            "threads": engine.threads,
            "max_batch": engine.max_batch,
            "max_queue": engine.max_queue,
            "cache_tokens": engine.cache_tokens,
            "prefix_cache_tokens": engine.prefix_cache_tokens,
            "context_length": config.model.context_length,
        }
        return cls(actor.remote(str(Path(directory).resolve()), options), name, engine.deadline_s)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        """See Engine. A request whose iterator is closed, or that is too long without a token, is cancelled in the actor."""
        stream = self._listening()
        number, arrivals = stream.submit(request)
        ended = False
        try:
            while True:
                piece = await self._next(arrivals, request.request_id)
                ended = isinstance(piece, EngineError) or piece.finish_reason is not None
                if isinstance(piece, EngineError):
                    raise piece
                yield piece
                if ended:
                    return
        finally:
            stream.forget(number, cancel=not ended)

    async def prefill_logprobs(
        self, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...], temperature: float
    ) -> tuple[float, ...]:
        """See Engine."""
        return await self._call("prefill_logprobs", prompt_ids, response_ids, temperature)

    async def pause(self) -> None:
        """See Engine."""
        await self._call("pause")

    async def resume(self) -> None:
        """See Engine."""
        await self._call("resume")

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        """See Engine. ``weights``: name → tensor, or PublishedWeights.

        A reference is resolved in the actor: the weights do not pass through this process.
        """
        if isinstance(weights, Mapping):
            from openclaw_core.weights.arrays import as_arrays

            weights = as_arrays(weights)
        else:
            weights = await self._in_reach(weights)
        await self._call("load_weights", weights, version, checksum)

    async def version(self) -> int:
        """See Engine."""
        return await self._ask("version", _VERSION_DEADLINE_S)

    async def stats(self) -> dict[str, int]:
        """See LocalEngine. Raises EngineError."""
        return await self._ask("stats", _VERSION_DEADLINE_S)

    async def ready(self) -> None:
        """Wait until the actor has loaded the model. Raises EngineError where it cannot: the actor is ended then.

        Else one whose host is away would go on waiting for it, beside each that is started after it.
        """
        try:
            await self._ask("version", self._deadline_s)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the actor's process; without an effect where it has ended."""
        ray.kill(self._actor)

    def _listening(self) -> _Stream:
        if self._stream is None or not self._stream.open:
            self._stream = _Stream(self._actor, self._name)
        return self._stream

    async def _in_reach(self, weights: Any) -> Any:
        """Published weights from where the actor can have them: its host's memory, or, on another host, Ray's object store."""
        from openclaw_core.weights.errors import PublishError
        from openclaw_core.weights.shared import SharedWeights

        (shared,) = weights.reference
        if not isinstance(shared, SharedWeights) or await self._call("reaches", shared):
            return shared
        try:
            (stored,) = await weights.elsewhere()
        except PublishError as error:
            raise EngineError(f"{self._name}, which is not beside the trainer, cannot get its weights: {error}") from error
        return stored

    async def _next(self, arrivals: asyncio.Queue[Tokens | EngineError], request_id: str) -> Tokens | EngineError:
        """What comes next for a request. Raises EngineError at the deadline, and where the actor is silent altogether."""
        end = time.monotonic() + self._deadline_s
        while (left := end - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(min(left, _QUIET_S)):
                    return await arrivals.get()
            except TimeoutError:
                if self._up and left > _QUIET_S:
                    await self.version()
        raise EngineError(f"{self._name}: {request_id} got no token for {self._deadline_s:g} s (engine.deadline_s)")

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Ask for something that takes its time. One that is up must go on saying its version meanwhile."""
        return await self._ask(method, self._deadline_s, *arguments, watched=True)

    async def _ask(self, method: str, deadline_s: float, *arguments: Any, watched: bool = False) -> Any:
        reference = getattr(self._actor, method).remote(*arguments)
        answer = asyncio.wrap_future(reference.future())
        try:
            async with asyncio.timeout(deadline_s):
                while watched and self._up and not (await asyncio.wait({answer}, timeout=_QUIET_S))[0]:
                    await self.version()
                result = await answer
                self._up = True
                return result
        except TimeoutError:
            setting = " (engine.deadline_s)" if deadline_s == self._deadline_s else ""
            raise EngineError(f"{self._name}.{method} did not answer within {deadline_s:g} s{setting}") from None
        except RayError as error:
            raise _translated(error, self._name, method) from error
        finally:
            if answer.cancel() or answer.cancelled():
                ray.cancel(reference)


class _Stream:
    """The actor's events for one event loop, told apart by request. Made in that loop; it ends with the actor."""

    def __init__(self, actor: Any, name: str) -> None:
        self._actor, self._name = actor, name
        self._client = uuid.uuid4().hex
        self._count = 0
        self._arrivals: dict[int, asyncio.Queue[Tokens | EngineError]] = {}
        self._loop = asyncio.get_running_loop()
        self._events = actor.events.options(num_returns="streaming").remote(self._client)
        self._listener = self._loop.create_task(self._listen(), name=f"{name}-events")

    @property
    def open(self) -> bool:
        """Whether it still listens, in the running loop."""
        return not self._listener.done() and self._loop is asyncio.get_running_loop()

    def submit(self, request: GenerateRequest) -> tuple[int, asyncio.Queue[Tokens | EngineError]]:
        """Send a request; its number, and where its tokens arrive."""
        self._count += 1
        arrivals = self._arrivals[self._count] = asyncio.Queue()
        self._actor.submit.options(num_returns=0).remote(self._client, self._count, request)
        return self._count, arrivals

    def forget(self, number: int, *, cancel: bool) -> None:
        """Nobody waits for this request; ``cancel``: the actor works on it."""
        del self._arrivals[number]
        if cancel:
            self._actor.cancel.options(num_returns=0).remote(self._client, number)

    async def _listen(self) -> None:
        try:
            async for reference in self._events:
                for number, what in await reference:
                    if (arrivals := self._arrivals.get(number)) is not None:
                        if isinstance(what, EngineError):
                            what = type(what)(f"{self._name}.generate: {what}")
                        arrivals.put_nowait(what)
            failure = EngineError(f"{self._name} ended its stream of events")
        except RayError as error:
            failure = _translated(error, self._name, "events")
        except Exception as error:  # nobody may be left waiting
            log.error("engine_events_failed", engine=self._name, exc_info=error)
            failure = EngineError(f"{self._name}.events failed: {type(error).__name__}: {error}")
        for arrivals in self._arrivals.values():
            arrivals.put_nowait(EngineError(str(failure)))


def _translated(error: RayError, name: str, method: str) -> EngineError:
    if isinstance(error, RayActorError):
        return EngineError(f"{name} is dead: {error}")
    if isinstance(error, RayTaskError) and isinstance(error.cause, EngineError):
        return type(error.cause)(f"{name}.{method}: {error.cause}")
    return EngineError(f"{name}.{method} failed: {error}")
