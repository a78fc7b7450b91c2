"""The front process: the pause gate, the lock that a pause waits for, and requests turned into pieces of an answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

from tests.sglang_contract.contract import Contract
from tests.sglang_contract.scheduler import Job, Scheduler

_ABANDONED_S = 2.0
"""How long a request goes on whose client has closed the connection."""
_PAUSE_POLL_S = 0.1
"""The real one polls once a second."""


class Frontend:
    """``context_length`` as the server was started with it. ``incremental``: --incremental-streaming-output."""

    def __init__(self, contract: Contract, scheduler: Scheduler, *, context_length: int, incremental: bool) -> None:
        self.contract, self.scheduler = contract, scheduler
        self.paused = False
        self.gate = asyncio.Condition()
        """Held by a pause until everything has ended: a second pause and a continue wait for it."""
        self._context_length, self._incremental = context_length, incremental
        self.aborts: list[str] = []
        """Ids of the aborts that were asked for."""
        self._in_flight: dict[str, Job] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self._readers = 0

    def jobs(self, body: dict[str, Any]) -> list[Job]:
        """The requests of one body. Raises ValueError where a value is out of its range, TypeError for an unknown field."""
        request = self.contract.parse("GenerateReqInput", body)
        inputs = request["input_ids"]
        if not inputs:
            raise ValueError("input_ids cannot be empty.")
        batch = isinstance(inputs[0], list)
        count = len(inputs) if batch else 1
        jobs: list[Job] = []
        for index in range(count):

            def of(name: str, default: Any, index: int = index) -> Any:
                value = request[name]
                if name == "token_ids_logprob" and not batch:
                    return default if value is None else value
                chosen = value[index] if batch and isinstance(value, list) else value
                return default if chosen is None else chosen

            rid = of("rid", uuid.uuid4().hex)
            if rid in self._in_flight or rid in {job.rid for job in jobs}:
                raise ValueError(f"Duplicate request IDs detected: {[rid]}")
            params = self.contract.sampling(of("sampling_params", {}))
            ids = inputs[index] if batch else inputs
            self._check(params, len(ids))
            wanted = of("return_logprob", False)
            start = of("logprob_start_len", -1) if wanted else -1
            jobs.append(
                Job(
                    rid=rid,
                    input_ids=list(ids),
                    params=params,
                    logprob_start_len=len(ids) if start == -1 else start,
                    top_logprobs_num=of("top_logprobs_num", 0),
                    token_ids_logprob=of("token_ids_logprob", []),
                    generator=self.scheduler.generator(),
                )
            )
        return jobs

    async def answers(self, job: Job, *, stream: bool) -> AsyncIterator[dict[str, Any]]:
        """The pieces of one answer; the last alone where it is not streamed."""
        self._in_flight[job.rid] = job
        try:
            async with self.gate:
                await self.gate.wait_for(lambda: not self.paused)
            self._readers += 1
            try:
                self.scheduler.add(job)
                sent = 0
                while True:
                    await job.news.wait()
                    job.news.clear()
                    if stream or job.finish_reason is not None:
                        yield self._piece(job, sent, stream)
                        sent = len(job.output_ids)
                    if job.finish_reason is not None:
                        return
            finally:
                self._readers -= 1
        finally:
            task = asyncio.create_task(self._forget(job))
            self._abandoned.add(task)
            task.add_done_callback(self._abandoned.discard)

    async def _forget(self, job: Job) -> None:
        """A finished request at once. One whose client has gone stays known for a while, and is aborted then."""
        deadline = asyncio.get_running_loop().time() + _ABANDONED_S
        while job.finish_reason is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        if job.finish_reason is None:
            self.scheduler.abort(job.rid)
        del self._in_flight[job.rid]

    def abort(self, rid: str, *, everything: bool) -> None:
        """An unknown id is ignored; a known one goes to the scheduler, which takes it for a prefix."""
        self.aborts.append("*" if everything else rid)
        if everything or rid in self._in_flight:
            self.scheduler.abort(rid, everything=everything)

    async def pause(self) -> None:
        """Mode abort: requests that come wait at the gate; those behind it are aborted until none is left."""
        async with self.gate:
            self.paused = True
            while True:
                self.scheduler.abort("", everything=True)
                if not self._readers:
                    return
                await asyncio.sleep(_PAUSE_POLL_S)

    async def resume(self) -> None:
        """Let what waits at the gate go."""
        async with self.gate:
            self.paused = False
            self.gate.notify_all()

    def _check(self, params: dict[str, Any], length: int) -> None:
        limit = self._context_length
        if length >= limit:
            raise ValueError(f"The input ({length} tokens) is longer than the model's context length ({limit} tokens).")
        total = length + params["max_new_tokens"]
        # 0.5.10 refuses a request that fills the context exactly.
        if total > limit or (total == limit and not self.contract.gated):
            raise ValueError(f"Requested token count exceeds the model's maximum context length of {limit} tokens: {total}.")
        bounds = {
            "temperature": params["temperature"] >= 0,
            "top_p": 0 < params["top_p"] <= 1,
            "min_p": 0 <= params["min_p"] <= 1,
            "top_k": params["top_k"] == -1 or params["top_k"] >= 1,
            "frequency_penalty": -2 <= params["frequency_penalty"] <= 2,
            "presence_penalty": -2 <= params["presence_penalty"] <= 2,
            "repetition_penalty": 0 < params["repetition_penalty"] <= 2,
            "max_new_tokens": params["max_new_tokens"] >= 0,
        }
        for name, fits in bounds.items():
            if not fits:
                raise ValueError(f"{name} is out of its range, got {params[name]}.")

    def _piece(self, job: Job, sent: int, stream: bool) -> dict[str, Any]:
        done = job.finish_reason is not None
        incremental = stream and self._incremental
        ids = job.output_ids[sent:] if incremental else list(job.output_ids)
        if job.aborted_waiting and stream and (incremental or not self.contract.gated):
            ids = job.output_ids[-1:]
        meta: dict[str, Any] = {
            "id": job.rid,
            "finish_reason": job.finish_reason,
            "prompt_tokens": len(job.input_ids),
            "weight_version": job.weight_version,
            "completion_tokens": len(job.output_ids),
            "cached_tokens": 0,
        }
        # 0.5.10 does not cut the log-probs of an increment.
        start = sent if incremental and self.contract.gated and not job.aborted_waiting else 0
        meta["input_token_logprobs"] = job.input_logprobs
        entries = [(value, token, None) for value, token in zip(job.output_logprobs, job.output_ids, strict=True)]
        meta["output_token_logprobs"] = entries[start:]
        meta["output_token_logprobs_length"] = len(job.output_ids)
        if job.top_logprobs_num:
            meta["output_top_logprobs"] = job.output_top[start:]
        if job.token_ids_logprob:
            meta["output_token_ids_logprobs"] = job.output_chosen[start:]
        if self.contract.gated and done and job.output_ids:
            meta["weight_versions"] = [{"version": job.weight_version, "start": 0, "end": len(job.output_ids)}]
        return {"text": "", "output_ids": ids, "meta_info": meta}
