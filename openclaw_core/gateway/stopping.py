"""Stop strings. Engines stop at token ids only; a stop string cuts what was sampled at the token that completes it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from openclaw_core.engines.protocol import Generation
from openclaw_core.gateway.rendering import Answer, ChatRenderer
from openclaw_core.types import FinishReason


def cut_at_stop(
    renderer: ChatRenderer, generation: Generation, prompt_ids: Sequence[int], stop: Sequence[str]
) -> tuple[Generation, Answer]:
    """The generation up to the first stop string, and its answer with the text before that string.

    The tokens that complete the stop string stay in the generation: they were sampled, and they end the turn.
    """
    answer = renderer.parse(generation.token_ids, prompt_ids)
    if not any(text in answer.text for text in stop):
        return generation, answer

    def stopped(length: int) -> bool:
        text = renderer.parse(generation.token_ids[:length], prompt_ids).text
        return any(part in text for part in stop)

    length = bisect_left(range(len(generation.token_ids) + 1), True, key=stopped)
    kept = replace(
        generation,
        token_ids=generation.token_ids[:length],
        logprobs=generation.logprobs[:length],
        finish_reason=FinishReason.STOP,
    )
    text = renderer.parse(kept.token_ids, prompt_ids).text
    return kept, replace(answer, text=text[: min(text.index(part) for part in stop if part in text)])
