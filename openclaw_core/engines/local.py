"""The development engine: transformers in this process, one worker thread, requests decoded together.

It speaks the same protocol as SGLang and has no feature that SGLang does not have. What waits is admitted between decode
steps, and what has ended or was given up leaves there. Stop strings are the gateway's business.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import structlog
import torch

from openclaw_core.engines.decoding import Counters, DecodeBatch, Row
from openclaw_core.engines.policy import Policy
from openclaw_core.engines.prefixes import PrefixStore
from openclaw_core.engines.protocol import EngineAborted, EngineError, EngineFull, GenerateRequest, RequestRefused, Tokens
from openclaw_core.weights.arrays import reading
from openclaw_core.weights.checksum import checksum as checksum_of
from openclaw_core.weights.errors import WeightsError
from openclaw_core.weights.shared import SharedWeights

log = structlog.get_logger()

T = TypeVar("T")

_PREFILL_TOKENS = 2048
"""Prompts that are admitted at a time have at most so many tokens, unless it is one alone: running answers wait for them."""


class LocalEngine:
    """An engine (``engines.protocol.Engine``) that belongs to one event loop.

    ``max_batch``: requests decoded together; ``max_queue``: requests that wait for that. ``cache_tokens``: bound of the keys
    and values, which take the longest running request times the number of running ones. ``prefix_cache_tokens``: bound of
    those kept after a request's end. ``context_length``: prompt plus answer, in tokens; the model's own limit where None.
    ``threads``: CPU threads.
    """

    grammars = False

    def __init__(
        self,
        directory: str | Path,
        *,
        dtype: str = "bf16",
        threads: int = 2,
        max_batch: int = 48,
        max_queue: int = 1024,
        cache_tokens: int = 65_536,
        prefix_cache_tokens: int = 16_384,
        context_length: int | None = None,
        version: int = 0,
    ) -> None:
        self._worker = ThreadPoolExecutor(1, "engine", initializer=torch.set_num_threads, initargs=(threads,))
        self._policy = self._worker.submit(Policy, Path(directory), dtype).result()
        self._context_length = self._policy.context_length if context_length is None else context_length
        if self._context_length > self._policy.context_length:
            raise EngineError(
                f"a context of {context_length} is over the {self._policy.context_length} of the model in {directory}"
            )
        self._max_batch, self._max_queue, self._cache_tokens = max_batch, max_queue, cache_tokens
        self._version = version
        self._counters = Counters()
        self._prefixes = PrefixStore(prefix_cache_tokens)
        self._borrowed = ExitStack()
        self._batch = DecodeBatch(self._policy, self._prefixes, self._counters)
        self._waiting: deque[_Answer] = deque()
        self._running: list[_Answer] = []
        self._paused = self._closed = False
        self._switching = asyncio.Lock()
        self._scheduler: asyncio.Task[None] | None = None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        """See Engine. The request takes its place in the queue when the first tokens are asked for."""
        self._check_open()
        self._check_request(request)
        if len(self._waiting) + len(self._running) >= self._max_batch + self._max_queue:
            raise EngineFull(
                f"{len(self._running)} requests run and {len(self._waiting)} wait (engine.max_queue={self._max_queue}); "
                f"send {request.request_id} again later"
            )
        answer = _Answer(Row(request))
        self._waiting.append(answer)
        self._schedule()
        try:
            while True:
                piece = await answer.pieces.get()
                if isinstance(piece, EngineError):
                    raise piece
                yield piece
                if piece.finish_reason is not None:
                    return
        finally:
            answer.wanted = False
            if answer in self._waiting:
                self._waiting.remove(answer)

    async def prefill_logprobs(
        self, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...], temperature: float
    ) -> tuple[float, ...]:
        """Unshaped log-probs [T] of ``response_ids`` at ``temperature`` (0: at 1). Raises RequestRefused."""
        self._check_ids(prompt_ids, len(response_ids))
        self._check_ids(response_ids, 0)
        return tuple(await self._on_worker(lambda: self._policy.logprobs(prompt_ids, response_ids, temperature or 1.0)))

    async def pause(self) -> None:
        """See Engine. The step that runs ends, and its tokens are still handed over."""
        async with self._switching:
            if not self._paused:  # what waits since an earlier pause waits for its resume
                self._paused = True
                doomed, self._waiting = self._waiting, deque()
                for answer in doomed:
                    answer.fail(self._aborted(answer))
            if self._scheduler is not None:
                await asyncio.wait({self._scheduler})

    async def resume(self) -> None:
        """See Engine."""
        async with self._switching:
            self._paused = False
            self._schedule()

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        """Serve ``weights`` as ``version`` after ``resume``; keys and values of the old ones are dropped.

        ``weights``: every parameter under its HF name, tied ones once, in any form that ``arrays.reading`` opens; or
        PublishedWeights, whose ``reference`` leads to that.

        Raises:
            EngineError: the engine is not paused, the weights are not in reach, their checksum is not ``checksum``, or they do
                not fit the model. The old version is still there then, whole.
        """
        if not self._paused or self._running:
            raise EngineError(f"version {version} cannot be loaded while requests may run; pause the engine first")
        if hasattr(weights, "reference"):
            (weights,) = weights.reference
            if not isinstance(weights, SharedWeights):
                weights = await weights
        await self._on_worker(lambda: self._install(weights, version, checksum))
        self._worker.submit(self._policy.prepare_head)  # while the answer and the call to resume are on their way

    async def version(self) -> int:
        """The version being served. Raises EngineError where the engine was closed."""
        self._check_open()
        return self._version

    def stats(self) -> dict[str, int]:
        """Tokens since the start (``Counters``) and requests now: running, waiting."""
        return {**asdict(self._counters), "running": len(self._running), "waiting": len(self._waiting)}

    def close(self) -> None:
        """Let the worker thread end; what runs or waits fails."""
        self._closed = True
        for answer in (*self._running, *self._waiting):
            answer.fail(EngineError("the engine was closed"))
        self._waiting.clear()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")

    def _check_request(self, request: GenerateRequest) -> None:
        self._check_ids(request.input_ids, request.sampling.max_new_tokens)
        if request.sampling.max_new_tokens < 1:
            raise RequestRefused(f"max_new_tokens is {request.sampling.max_new_tokens}; it must be at least 1")
        if not 0 <= request.continued <= len(request.input_ids):
            raise RequestRefused(f"continued is {request.continued} of {len(request.input_ids)} ids")
        if not 0 <= request.top_logprobs <= self._policy.vocab_size:
            raise RequestRefused(f"top_logprobs is {request.top_logprobs}; allowed: 0 to {self._policy.vocab_size}")
        if request.grammar is not None:
            raise RequestRefused(f"this engine knows no grammars, and {request.request_id} has a {request.grammar.kind}")

    def _check_ids(self, ids: Sequence[int], more: int) -> None:
        if not ids:
            raise RequestRefused("the engine was given no token ids")
        if len(ids) + more > self._context_length:
            raise RequestRefused(
                f"{len(ids)} ids and {more} more do not fit into the engine's context of {self._context_length}"
            )
        if not 0 <= min(ids) <= max(ids) < self._policy.vocab_size:
            raise RequestRefused(
                f"token ids from {min(ids)} to {max(ids)} are outside the vocabulary of {self._policy.vocab_size}"
            )

    def _schedule(self) -> None:
        if self._scheduler is None or self._scheduler.done():
            self._scheduler = asyncio.create_task(self._run(), name="engine-scheduler")

    async def _run(self) -> None:
        while not (self._paused or self._closed) and (self._waiting or self._running):
            await self._advance()
        if self._paused:
            for answer in self._running:
                answer.fail(self._aborted(answer))
            self._drop_running()

    async def _advance(self) -> None:
        """One token for what runs, and the first one for what enters."""
        leaving = [answer for answer in self._running if not answer.wanted]
        self._running = [answer for answer in self._running if answer.wanted]
        entering = self._next_waiting()
        self._running += entering
        try:
            await self._on_worker(lambda: self._decode([a.row for a in leaving], [a.row for a in entering]))
        except Exception as error:  # whatever a forward pass raises: those in it are told, and the engine goes on
            log.error("batch_failed", requests=len(self._running), exc_info=error)
            message = f"a batch of {len(self._running)} requests failed: {type(error).__name__}: {error}"
            for answer in self._running:
                answer.fail(EngineError(message), error)
            self._drop_running()
            return
        for answer in self._running:
            if (tokens := answer.row.hand_over(self._version)) is not None:
                answer.pieces.put_nowait(tokens)
        self._running = [answer for answer in self._running if answer.row.finish_reason is None]

    def _next_waiting(self) -> list[_Answer]:
        """What may enter now, in order of arrival."""
        entering: list[_Answer] = []
        longest = max((answer.row.most_tokens for answer in self._running), default=0)
        prefill = 0
        while self._waiting and (count := len(self._running) + len(entering)) < self._max_batch:
            row = self._waiting[0].row
            longest, prefill = max(longest, row.most_tokens), prefill + len(row.request.input_ids)
            too_large = count > 0 and (count + 1) * longest > self._cache_tokens
            if too_large or (entering and prefill > _PREFILL_TOKENS):
                break
            entering.append(self._waiting.popleft())
        return entering

    def _decode(self, leaving: Sequence[Row], entering: Sequence[Row]) -> None:
        with torch.inference_mode():
            self._batch.remove(leaving)
            self._batch.step()
            self._batch.admit(entering)

    def _drop_running(self) -> None:
        self._running = []
        self._batch = DecodeBatch(self._policy, self._prefixes, self._counters)

    def _aborted(self, answer: _Answer) -> EngineAborted:
        return EngineAborted(f"{answer.row.request.request_id} was broken off: the engine pauses to take new weights")

    def _install(self, weights: Any, version: int, checksum: str) -> None:
        try:
            with ExitStack() as reader:
                named = reader.enter_context(reading(weights))
                if (found := checksum_of(named.items())) != checksum:
                    raise EngineError(
                        f"version {version} arrived with checksum {found}, not {checksum}; still serving {self._version}"
                    )
                # Shared memory is not overwritten while it is read, and it is read for as long as it is served from.
                borrowed = self._policy.install(named, borrow=isinstance(weights, SharedWeights))
                self._borrowed.close()
                if borrowed:
                    self._borrowed = reader.pop_all()
        except WeightsError as error:
            raise EngineError(f"version {version} could not be read: {error}") from error
        self._prefixes.clear()
        self._version = version
        log.info("weights_loaded", version=version, checksum=checksum[:12])

    async def _on_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


@dataclass(eq=False, slots=True)
class _Answer:
    row: Row
    pieces: asyncio.Queue[Tokens | EngineError] = field(default_factory=asyncio.Queue)
    wanted: bool = True
    """Whether someone still waits for it."""

    def fail(self, failure: EngineError, cause: BaseException | None = None) -> None:
        failure.__cause__ = cause
        self.pieces.put_nowait(failure)
