"""Log-probs of given tokens, as the server computes them: what the parity probe compares with the trainer's.

A prefill gives them in one request, but at temperature 1 only: neither version has a temperature on that path (0.5.10
carries a switch, ``temp_scaled_logprobs``, that nothing sets; 0.5.23 has dropped it). The log-prob of one token at another
temperature needs the whole distribution, which HTTP does not carry. So at any other temperature each token is scored by a
request of its own for one more token, with that token's id in ``token_ids_logprob``: the sampler's own path, the very numbers
that sampling reports, at the price of one short prefill a token (the prefix is cached).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.sglang.errors import parse_abort
from openclaw_core.engines.sglang.http import Http
from openclaw_core.engines.sglang.wire import sampling_params
from openclaw_core.types import Sampling

MAX_STEPS = 1024
"""Tokens that are scored one by one; longer answers can be scored at temperature 1 only."""

_BATCH = 32
"""One-token requests in one call."""


async def prefill_logprobs(
    http: Http, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...], temperature: float, deadline_s: float
) -> tuple[float, ...]:
    """Log-probs [T] of ``response_ids`` after ``prompt_ids`` at ``temperature`` (0: at 1), over the full vocabulary.

    Raises:
        EngineError: refused, unreachable, not one finite number a token, or more than MAX_STEPS tokens at a temperature
            other than 1.
    """
    if not prompt_ids or not response_ids:
        raise EngineError(
            f"cannot score {len(response_ids)} tokens after a prompt of {len(prompt_ids)}; both need one at least"
        )
    if temperature in (0.0, 1.0):
        return await _by_prefill(http, prompt_ids, response_ids, deadline_s)
    if len(response_ids) > MAX_STEPS:
        raise EngineError(
            f"SGLang gives log-probs of a given text at temperature 1 only, and token by token at others; {len(response_ids)} "
            f"tokens at {temperature:g} are over the limit of {MAX_STEPS}: score a shorter answer, or at temperature 1"
        )
    scored: list[float] = []
    for start in range(0, len(response_ids), _BATCH):
        steps = range(start, min(start + _BATCH, len(response_ids)))
        scored += await _by_steps(http, prompt_ids, response_ids, steps, temperature, deadline_s)
    return tuple(scored)


async def _by_prefill(
    http: Http, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...], deadline_s: float
) -> tuple[float, ...]:
    body = {
        "input_ids": [*prompt_ids, *response_ids],
        "sampling_params": sampling_params(Sampling(temperature=1.0, max_new_tokens=0)),
        "return_logprob": True,
        # The first entry is always null, whatever the start: one before the response, and that one is dropped.
        "logprob_start_len": len(prompt_ids) - 1,
        "stream": False,
    }
    answer = await _ask(http, body, deadline_s)
    entries = answer["meta_info"].get("input_token_logprobs") or []
    if len(entries) != len(response_ids) + 1:
        raise EngineError(f"{http.base_url} gave {len(entries)} prompt log-probs for {len(response_ids)} tokens, not one more")
    ids = tuple(entry[1] for entry in entries[1:])
    if ids != response_ids:
        raise EngineError(f"{http.base_url} scored the tokens {list(ids)[:8]}… instead of {list(response_ids)[:8]}…")
    return _finite(http, [entry[0] for entry in entries[1:]])


async def _by_steps(
    http: Http,
    prompt_ids: tuple[int, ...],
    response_ids: tuple[int, ...],
    steps: range,
    temperature: float,
    deadline_s: float,
) -> tuple[float, ...]:
    inputs = [[*prompt_ids, *response_ids[:step]] for step in steps]
    body = {
        "input_ids": inputs,
        "sampling_params": sampling_params(Sampling(temperature=temperature, max_new_tokens=1)),
        "return_logprob": True,
        "logprob_start_len": [len(ids) for ids in inputs],
        "token_ids_logprob": [[response_ids[step]] for step in steps],
        "stream": False,
    }
    answers = await _ask(http, body, deadline_s)
    if len(answers) != len(inputs):
        raise EngineError(f"{http.base_url} gave {len(answers)} answers to {len(inputs)} prompts")
    values: list[Any] = []
    for step, answer in zip(steps, answers, strict=True):
        (((value, token, *_),),) = answer["meta_info"]["output_token_ids_logprobs"]
        if token != response_ids[step]:
            raise EngineError(f"{http.base_url} scored token {token} instead of {response_ids[step]}")
        values.append(value)
    return _finite(http, values)


async def _ask(http: Http, body: dict[str, Any], deadline_s: float) -> Any:
    """A call without a stream: one answer, or a list of them for a list of prompts."""
    what = f"{http.base_url}/generate"
    reply = await http.call("POST", "/generate", deadline_s, body=body)
    if reply.fault is not None:
        raise reply.fault.error(what)
    for answer in reply.body if isinstance(reply.body, list) else [reply.body]:
        reason = answer["meta_info"].get("finish_reason") or {}
        if reason.get("type") == "abort":
            raise parse_abort(reason).error(what)
    return reply.body


def _finite(http: Http, values: Sequence[Any]) -> tuple[float, ...]:
    wrong = [index for index, value in enumerate(values) if value is None or not math.isfinite(value)]
    if wrong:
        raise EngineError(f"{http.base_url}: log-prob {values[wrong[0]]} at position {wrong[0]} of {len(values)} is not finite")
    return tuple(float(value) for value in values)
