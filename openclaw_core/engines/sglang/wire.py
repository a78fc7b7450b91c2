"""The body of a /generate request.

Every sampling field is sent: what is left out would come from the model's generation_config or the server's preferences,
and be neither pinned nor recorded. Stop strings are the gateway's business and are not sent. ``ignore_eos`` stays false:
it would switch ``stop_token_ids`` off too, so the model's own end tokens always end an answer, as in every engine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from openclaw_core.engines.protocol import GenerateRequest
from openclaw_core.types import Sampling

OUTPUT_ONLY = -1
"""``logprob_start_len`` that gives log-probs of the answer alone."""

_MAX_PIECES = 1024
"""Of one answer. A server that streams cumulatively (0.5.10 always does for log-probs) sends the whole answer in each: bytes
grow with the square of its length, so long answers come several tokens a piece."""


def generate_body(request: GenerateRequest, rid: str) -> dict[str, Any]:
    """The body of a streaming request for one answer."""
    sampling = request.sampling
    params = sampling_params(sampling, request.stop_token_ids)
    params["stream_interval"] = -(-sampling.max_new_tokens // _MAX_PIECES)
    if request.grammar is not None:
        params[request.grammar.kind] = request.grammar.text
    if bias := carried_penalties(request):
        params["logit_bias"] = bias
    return {
        "rid": rid,
        "input_ids": list(request.input_ids),
        "sampling_params": params,
        "stream": True,
        "return_logprob": True,
        "logprob_start_len": OUTPUT_ONLY,
        "top_logprobs_num": request.top_logprobs,
        "return_text_in_logprobs": False,
    }


def sampling_params(sampling: Sampling, stop_token_ids: Sequence[int] = ()) -> dict[str, Any]:
    """``sampling`` in SGLang's names, with the exact types that its newer versions insist on."""
    params: dict[str, Any] = {
        "temperature": float(sampling.temperature),
        "max_new_tokens": sampling.max_new_tokens,
        "min_new_tokens": 0,
        "top_p": float(sampling.top_p),
        "top_k": sampling.top_k,
        "min_p": float(sampling.min_p),
        "repetition_penalty": float(sampling.repetition_penalty),
        "frequency_penalty": float(sampling.frequency_penalty),
        "presence_penalty": float(sampling.presence_penalty),
        "n": 1,
        "stop_token_ids": list(stop_token_ids),
        "ignore_eos": False,
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    return params


def carried_penalties(request: GenerateRequest) -> dict[str, float]:
    """The additive penalties of the tokens that a continued answer has already, as ``logit_bias``: token id -> bias.

    SGLang's penalties count what its own request generates; the answer so far is prompt to it. The frequency penalty is
    carried over exactly. The presence penalty too, but a token that comes again is then penalised twice. The repetition
    penalty multiplies and cannot be carried: it starts anew (``penalty_restarts``). The log-probs that come back are of what
    was really sampled in every case.
    """
    sampling = request.sampling
    if not request.continued or not (sampling.frequency_penalty or sampling.presence_penalty):
        return {}
    counts = Counter(request.input_ids[-request.continued :])
    return {
        str(token): -(sampling.frequency_penalty * count + sampling.presence_penalty) for token, count in sorted(counts.items())
    }


def penalty_restarts(request: GenerateRequest) -> bool:
    """Whether a continued answer loses the repetition penalty of its tokens so far."""
    return request.continued > 0 and not math.isclose(request.sampling.repetition_penalty, 1.0)
