"""Bytes of one engine rank: weights, key-value cache, and the largest prefill."""

from __future__ import annotations

from openclaw_core.config.schema import RunConfig
from openclaw_core.planning.activations import Pass
from openclaw_core.planning.weights import DTYPE_BYTES, FP32
from openclaw_core.weights.spec import ModelSpec

CHUNKED_PREFILL = 8192
"""Tokens that SGLang prefills at a time on a device of up to 64 GB (its default by memory)."""


def sequences_at_once(config: RunConfig) -> int:
    """Sequences that one engine serves at a time, at most: sessions take turns, and the evaluation asks many at once."""
    at_once = max(config.feeder.sessions_in_flight, config.evaluation.concurrency)
    if config.engine.backend == "local":
        return min(config.engine.max_batch, at_once)
    # A request beyond what the cache holds waits in SGLang; sessions are what must not wait.
    return -(-config.feeder.sessions_in_flight // config.engine.count)


def cache_bytes_per_token(spec: ModelSpec, dtype_bytes: int, tensor_parallel: int) -> int:
    """Keys and values of all layers."""
    return 2 * spec.layers * spec.kv_heads // tensor_parallel * spec.head_dim * dtype_bytes


def cache_bytes(config: RunConfig, spec: ModelSpec, tensor_parallel: int) -> int:
    """With every sequence as long as the context."""
    token = cache_bytes_per_token(spec, DTYPE_BYTES[config.engine.dtype], tensor_parallel)
    return sequences_at_once(config) * config.model.context_length * token


def prefill_bytes(config: RunConfig, spec: ModelSpec, tensor_parallel: int) -> int:
    """Of a forward pass over the prompts of a batch (local) or over a chunk of them (SGLang); attention is fused in both."""
    context = config.model.context_length
    prompts = sequences_at_once(config) * (context - config.rollout.max_response_tokens)
    positions = prompts if config.engine.backend == "local" else min(CHUNKED_PREFILL, prompts)
    return Pass(spec, config.engine.dtype, positions, context, tensor_parallel, flash=True).forward_only()


def judge_call_tokens(config: RunConfig) -> int:
    """Of one vote: the answer, a next state as long as an answer, and what the judge writes."""
    return 2 * config.rollout.max_response_tokens + config.judge.max_tokens


def judge_cache_bytes(config: RunConfig, spec: ModelSpec, tensor_parallel: int) -> int:
    """All votes on one turn, two questions, each as long as it can be. More votes wait in the server."""
    token = cache_bytes_per_token(spec, DTYPE_BYTES["bf16"], tensor_parallel)
    return 2 * config.judge.votes * judge_call_tokens(config) * token


def judge_prefill_bytes(config: RunConfig, spec: ModelSpec, tensor_parallel: int) -> int:
    """Of a chunk of a prompt."""
    length = judge_call_tokens(config)
    return Pass(spec, "bf16", min(CHUNKED_PREFILL, length), length, tensor_parallel, flash=True).forward_only()


def fp32_head_bytes(config: RunConfig, spec: ModelSpec) -> int:
    """The local engine holds the output matrix in fp32 too."""
    return spec.vocab_size * spec.hidden * FP32 if config.engine.backend == "local" else 0
