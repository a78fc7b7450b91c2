"""From a judged turn to a training sample: what is fit for a batch, the spliced teacher prompts, truncated answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

from openclaw_core.config.feedback import JudgeConfig
from openclaw_core.config.schema import RunConfig
from openclaw_core.gateway.rendering import splice
from openclaw_core.judge.leakage import quotes_answer
from openclaw_core.ledger import JudgedTurn
from openclaw_core.types import DropReason, FinishReason, HintRefusal, NextState, Sample, Turn

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


def judged_at_all(turn_id: str, state: NextState, judge: JudgeConfig) -> bool:
    """Whether ``judge.tool_turns`` lets this turn be judged. Told by the turn's id, so it is the same every time."""
    if state.role != "tool" or judge.tool_turns == "score":
        return True
    if judge.tool_turns == "skip":
        return False
    digest = hashlib.blake2b(turn_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 < judge.tool_turn_share


def hint_refusal(turn: Turn, hint: str, answer: str | None, config: RunConfig, encode_hint: HintEncoder) -> HintRefusal | None:
    """Why a hint may not be used for a turn; None if it may. ``answer``: the known answer of its problem, if there is one."""
    if answer is not None and quotes_answer(hint, answer):
        return HintRefusal.QUOTES_ANSWER
    if turn.hint_offset is None:
        return HintRefusal.NO_USER_MESSAGE
    return None if len(encode_hint(hint)) <= _room(turn, config) else HintRefusal.CONTEXT_LIMIT


def _room(turn: Turn, config: RunConfig) -> int:
    """Tokens that a hint may have."""
    return config.model.context_length - len(turn.prompt_ids) - len(turn.response_ids)


def build_sample(judged: JudgedTurn, config: RunConfig, encode_hint: HintEncoder) -> Sample:
    """The sample of a judged turn, its hints spliced into the stored prompt ids (ALGORITHM 1).

    Hints that do not fit were refused when the turn was judged (``hint_refusal``); in a ledger from before that, they are left
    out here. Hints are kept shortest first.
    """
    turn, judgement = judged.turn, judged.judgement
    truncated = turn.finish_reason is FinishReason.LENGTH
    handling = config.rollout.truncated if truncated else "keep_opd"
    hints: list[str] = []
    prompts: list[tuple[int, ...]] = []
    if handling == "keep_opd" and turn.hint_offset is not None and config.loss.w_opd > 0:
        room = _room(turn, config)
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
