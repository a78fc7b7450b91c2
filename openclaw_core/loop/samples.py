"""From a judged turn to a training sample: what is fit for a batch, the spliced teacher prompts, truncated answers."""

from __future__ import annotations

import math
from collections.abc import Callable

from openclaw_core.config.schema import RunConfig
from openclaw_core.gateway.rendering import splice
from openclaw_core.ledger import JudgedTurn
from openclaw_core.types import DropReason, FinishReason, Sample, Turn

HintEncoder = Callable[[str], tuple[int, ...]]
"""Token ids of a hint as it is spliced in, label and blank line included."""


def unfit(turn: Turn, version: int, max_staleness: int) -> DropReason | None:
    """Why this turn cannot enter a batch trained from ``version`` (ALGORITHM 1, 2 and 6); None if it can."""
    if version - turn.weight_version > max_staleness:
        return DropReason.STALE
    if turn.sampling.temperature == 0:
        return DropReason.GREEDY
    if len(turn.rollout_logprobs) != len(turn.response_ids) or not all(map(math.isfinite, turn.rollout_logprobs)):
        return DropReason.INVALID_LOGPROBS
    return None


def build_sample(judged: JudgedTurn, config: RunConfig, encode_hint: HintEncoder) -> Sample:
    """The sample of a judged turn, its hints spliced into the stored prompt ids (ALGORITHM 1).

    A hint that would push the teacher's sequence past the context length is left out. Hints are kept shortest first.
    """
    turn, judgement = judged.turn, judged.judgement
    truncated = turn.finish_reason is FinishReason.LENGTH
    handling = config.rollout.truncated if truncated else "keep_opd"
    hints: list[str] = []
    prompts: list[tuple[int, ...]] = []
    if handling == "keep_opd" and turn.hint_offset is not None and config.loss.w_opd > 0:
        room = config.model.context_length - len(turn.prompt_ids) - len(turn.response_ids)
        for hint in judgement.hints[: config.loss.max_candidates]:
            ids = encode_hint(hint)
            if len(ids) <= room:
                hints.append(hint)
                prompts.append(splice(turn.prompt_ids, turn.hint_offset, ids))
    return Sample(
        sample_id=turn.turn_id,
        session_id=turn.session_id,
        prompt_ids=turn.prompt_ids,
        response_ids=turn.response_ids,
        rollout_logprobs=turn.rollout_logprobs,
        loss_mask=((0 if handling == "mask" else 1),) * len(turn.response_ids),
        reward=-1.0 if handling == "negative" else float(judgement.reward),
        teacher_prompt_ids=tuple(prompts),
        hints=tuple(hints),
        temperature=turn.sampling.temperature,
        shaped=turn.sampling.shaped,
        weight_version=turn.weight_version,
        truncated=truncated,
    )
