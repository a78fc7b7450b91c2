"""What runs and what waits: one token for every running request a turn, aborts by prefix, a bounded queue."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.sglang_contract.model import TinyModel, sample


@dataclass(eq=False)
class Job:
    """One request in the scheduler. ``news`` is set whenever there is something to report."""

    rid: str
    input_ids: list[int]
    params: dict[str, Any]
    logprob_start_len: int
    top_logprobs_num: int
    token_ids_logprob: list[int]
    generator: torch.Generator
    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_top: list[list[tuple[float, int, None]]] = field(default_factory=list)
    output_chosen: list[list[tuple[float, int, None]]] = field(default_factory=list)
    input_logprobs: list[tuple[float | None, int, None]] = field(default_factory=list)
    finish_reason: dict[str, Any] | None = None
    weight_version: str = ""
    aborted_waiting: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self, reason: dict[str, Any]) -> None:
        """The last report."""
        self.finish_reason = reason
        self.news.set()


class Scheduler:
    """``version``: asked for at every report. ``step_s``: a pause between turns, so that tests can come in between."""

    def __init__(
        self,
        model: TinyModel,
        *,
        context_length: int,
        max_running: int,
        max_queued: int | None,
        version: Callable[[], str],
        step_s: float,
    ) -> None:
        self.model = model
        self.max_req_len = context_length - 1
        self.max_req_input_len = self.max_req_len - 5
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.exclusive = asyncio.Lock()
        """Held by a turn, and by a control call that must not see one half-way."""
        self._max_running, self._max_queued = max_running, max_queued
        self._version, self._step_s = version, step_s
        self._wanted = asyncio.Event()
        self._seeds = itertools.count()

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self.running and not self.waiting

    def generator(self) -> torch.Generator:
        """Requests are seeded by the order in which they come; a seed of theirs needs a server flag that is not set."""
        return torch.Generator().manual_seed(next(self._seeds))

    def add(self, job: Job) -> None:
        """Queue a request, or finish it at once where it cannot be."""
        if len(job.input_ids) >= self.max_req_input_len:
            job.finish(_abort(f"Input length {len(job.input_ids)} exceeds {self.max_req_input_len}.", 400))
        elif job.logprob_start_len > len(job.input_ids):
            job.finish(_abort("logprob_start_len is higher than the number of input tokens.", 400))
        elif self._max_queued is not None and len(self.waiting) + 1 > self._max_queued:
            job.finish(_abort("The request queue is full.", 503))
        else:
            room = self.max_req_len - len(job.input_ids) - 1
            job.params["max_new_tokens"] = min(job.params["max_new_tokens"], room)
            self.waiting.append(job)
            self._wanted.set()

    def abort(self, prefix: str, *, everything: bool = False) -> None:
        """What waits ends at once, what runs with its next turn."""
        for job in [job for job in self.waiting if everything or job.rid.startswith(prefix)]:
            self.waiting.remove(job)
            job.aborted_waiting = True
            job.finish({"type": "abort", "message": "Abort in waiting queue"})
        for job in self.running:
            if everything or job.rid.startswith(prefix):
                job.finish_reason = _abort("Aborted by request.", None)

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            self._wanted.clear()
            if self.idle:
                await self._wanted.wait()
            async with self.exclusive:
                while self.waiting and len(self.running) < self._max_running:
                    self.running.append(self.waiting.pop(0))
                for job in list(self.running):
                    self._turn(job)
            await asyncio.sleep(self._step_s)

    def _turn(self, job: Job) -> None:
        job.weight_version = self._version()
        if job.finish_reason is None:
            if not job.output_ids:
                self._prefill(job)
            if job.finish_reason is None:
                self._decode(job)
        if job.finish_reason is not None:
            self.running.remove(job)
        if job.finish_reason is not None or len(job.output_ids) % (job.params["stream_interval"] or 1) == 0:
            job.news.set()

    def _prefill(self, job: Job) -> None:
        """Log-probs of the prompt from its start on, at temperature 1; the first is always null."""
        start = job.logprob_start_len
        if 0 <= start < len(job.input_ids):
            scored = job.input_ids[start:]
            rows = torch.log_softmax(self.model.logits(job.input_ids, last=len(scored))[:-1], dim=-1)
            values = [None, *(float(row[token]) for row, token in zip(rows, scored[1:], strict=True))]
            job.input_logprobs = [(value, token, None) for value, token in zip(values, scored, strict=True)]
        if job.params["max_new_tokens"] == 0:
            job.finish_reason = {"type": "length", "length": 0}

    def _decode(self, job: Job) -> None:
        logits = self.model.logits([*job.input_ids, *job.output_ids])[0]
        token, logprobs = sample(logits, job.params, job.output_ids, job.generator)
        job.output_ids.append(token)
        job.output_logprobs.append(float(logprobs[token]))
        if job.top_logprobs_num:
            job.output_top.append(_entries(logprobs, logprobs.topk(job.top_logprobs_num).indices.tolist()))
        job.output_chosen.append(_entries(logprobs, job.token_ids_logprob))
        stops = {*(job.params["stop_token_ids"] or ()), *self.model.eos}
        if token in stops and not job.params["ignore_eos"]:
            job.finish_reason = {"type": "stop", "matched": token}
        elif len(job.output_ids) >= job.params["max_new_tokens"]:
            job.finish_reason = {"type": "length", "length": len(job.output_ids)}


def _entries(logprobs: Tensor, tokens: list[int]) -> list[tuple[float, int, None]]:
    return [(float(logprobs[token]), token, None) for token in tokens]


def _abort(message: str, status: int | None) -> dict[str, Any]:
    return {"type": "abort", "message": message, "status_code": status, "err_type": None}
