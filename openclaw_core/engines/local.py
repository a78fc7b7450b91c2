"""The development engine: transformers in this process, one worker thread, batches of concurrent requests.

It speaks the same protocol as SGLang and has no feature that SGLang does not have. Requests that come while a batch
decodes wait for the next one; weights are replaced between batches. Stop strings are the gateway's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import structlog
import torch
from torch import Tensor

from openclaw_core.engines.arrays import as_tensors
from openclaw_core.engines.decoding import DecodeBatch, Row
from openclaw_core.engines.policy import Policy
from openclaw_core.engines.protocol import EngineError, GenerateRequest, Generation
from openclaw_core.weights.checksum import checksum as checksum_of

log = structlog.get_logger()

T = TypeVar("T")

_MAX_WINDOWS = 10
"""A batch that keeps growing is started after this many windows all the same."""


class LocalEngine:
    """An engine (``engines.protocol.Engine``) that belongs to one event loop.

    ``batch_window_ms``: how long a batch waits for another request before it starts, counted from the last one that came.
    ``context_length``: prompt plus answer, in tokens; the model's own limit where None. ``threads``: CPU threads.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        dtype: str = "bf16",
        threads: int = 2,
        max_batch: int = 48,
        batch_window_ms: int = 50,
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
        self._max_batch = max_batch
        self._window_s = batch_window_ms / 1000
        self._version = version
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._batcher: asyncio.Task[None] | None = None

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one answer, together with whatever else is waiting. Cancelling the call gives its place up.

        Raises:
            EngineError: the prompt is empty, holds an id outside the vocabulary, or leaves no room for the answer.
        """
        self._check(request.input_ids, request.sampling.max_new_tokens)
        answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(Row(request, answer.cancelled), answer))
        self._arrived.set()
        if self._batcher is None or self._batcher.done():
            self._batcher = asyncio.create_task(self._run_batches(), name="engine-batches")
        return await answer

    async def prefill_logprobs(
        self, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...], temperature: float
    ) -> tuple[float, ...]:
        """Unshaped log-probs [T] of ``response_ids`` at ``temperature`` (0: at 1). Raises EngineError."""
        self._check(prompt_ids, len(response_ids))
        self._check(response_ids, 0)
        return tuple(await self._on_worker(lambda: self._policy.logprobs(prompt_ids, response_ids, temperature or 1.0)))

    async def load_weights(self, weights: Mapping[str, Tensor | np.ndarray], version: int, checksum: str) -> None:
        """Serve ``weights`` as ``version`` from the next batch on; the running one ends on the old weights.

        ``weights``: every parameter under its HF name, tied ones once, as tensors or as ``arrays.as_arrays`` gives them.

        Raises:
            EngineError: their checksum is not ``checksum``, or they do not fit the model. The old version goes on.
        """
        await self._on_worker(lambda: self._install(as_tensors(weights), version, checksum))

    async def version(self) -> int:
        """The version being served."""
        return self._version

    def close(self) -> None:
        """Let the worker thread end."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _check(self, ids: Sequence[int], more: int) -> None:
        if not ids:
            raise EngineError("the engine was given no token ids")
        if len(ids) + more > self._context_length:
            raise EngineError(f"{len(ids)} ids and {more} more do not fit into the engine's context of {self._context_length}")
        if not 0 <= min(ids) <= max(ids) < self._policy.vocab_size:
            raise EngineError(
                f"token ids from {min(ids)} to {max(ids)} are outside the vocabulary of {self._policy.vocab_size}"
            )

    async def _run_batches(self) -> None:
        while self._waiting:
            await self._gather()
            wanted = [waiting for waiting in self._waiting if waiting.row.active]
            batch, self._waiting = wanted[: self._max_batch], wanted[self._max_batch :]
            if batch:
                await self._decode(batch)

    async def _gather(self) -> None:
        """Wait until the next batch is full or no other request has come for a window."""
        for _ in range(_MAX_WINDOWS):
            if len(self._waiting) >= self._max_batch:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), self._window_s)
            except TimeoutError:
                return

    async def _decode(self, batch: Sequence[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        answers = {waiting.row: waiting.answer for waiting in batch}

        def finished(row: Row, version: int) -> None:
            loop.call_soon_threadsafe(_resolve, answers[row], row, version)

        started = time.monotonic()
        job = loop.run_in_executor(self._worker, self._decode_rows, list(answers), finished)
        await asyncio.wait({job})
        if (error := job.exception()) is not None:
            log.error("batch_failed", requests=len(batch), exc_info=error)
            for answer in answers.values():
                _fail(answer, f"a batch of {len(batch)} requests failed: {type(error).__name__}: {error}", error)
            return
        tokens, seconds = sum(len(row.token_ids) for row in answers), time.monotonic() - started
        log.debug("batch_decoded", requests=len(batch), tokens=tokens, seconds=round(seconds, 3), version=self._version)

    def _decode_rows(self, rows: Sequence[Row], finished: Callable[[Row, int], None]) -> None:
        with torch.inference_mode():
            batch = DecodeBatch(self._policy, rows)
            while batch.active:
                for row in batch.step():
                    finished(row, self._version)

    def _install(self, weights: Mapping[str, Tensor], version: int, checksum: str) -> None:
        if (found := checksum_of(weights.items())) != checksum:
            raise EngineError(f"version {version} arrived with checksum {found}, not {checksum}; still serving {self._version}")
        self._policy.install(weights)
        self._version = version
        log.info("weights_loaded", version=version, checksum=checksum[:12])

    async def _on_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


@dataclass(frozen=True, slots=True)
class _Waiting:
    row: Row
    answer: asyncio.Future[Generation]


def _resolve(answer: asyncio.Future[Generation], row: Row, version: int) -> None:
    if answer.done():
        return
    assert row.finish_reason is not None
    answer.set_result(Generation(row.request.request_id, tuple(row.token_ids), tuple(row.logprobs), row.finish_reason, version))


def _fail(answer: asyncio.Future[Generation], message: str, cause: BaseException) -> None:
    if not answer.done():
        failure = EngineError(message)
        failure.__cause__ = cause
        answer.set_exception(failure)
