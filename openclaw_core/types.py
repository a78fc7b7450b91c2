"""The nouns that flow through the system: turn → judgement → sample.

They are frozen, hold plain Python values (no tensors) and import nothing of the rest, so every part may pass them on.
Symbols in the docstrings are those of docs/ALGORITHM.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

Message = dict[str, Any]
"""One chat message in OpenAI's form: ``role``, ``content`` and, for tools, ``tool_calls`` or ``tool_call_id``."""


class TurnType(StrEnum):
    """Whether a turn is trained on."""

    MAIN = "main"
    """Part of a session's main line: captured, judged, trained on."""
    SIDE = "side"
    """Answered and forgotten: evaluation, summaries, health checks."""


class FinishReason(StrEnum):
    """Why the engine stopped; the values are OpenAI's."""

    STOP = "stop"
    """The model ended its turn."""
    LENGTH = "length"
    """The answer hit ``max_new_tokens`` (ALGORITHM 1: a truncated answer)."""
    TOOL_CALLS = "tool_calls"
    """The model ended its turn by calling tools."""


class DropReason(StrEnum):
    """Why a turn or a sample was not trained on. Each member is a metric label of ``rollout/dropped``."""

    STALE = "stale"
    """Its oldest token is more than ``max_staleness`` versions old."""
    GREEDY = "greedy"
    """Sampled at temperature 0, where no policy gradient exists."""
    INVALID_LOGPROBS = "invalid_logprobs"
    """The engine's log-probs are missing, non-finite or not one per token."""
    LOGPROB_MISMATCH = "logprob_mismatch"
    """Mean |ell_old - log mu| is over ``max_logprob_diff``: masked, but still counted in N."""
    MISSING_SCORE = "missing_score"
    """The teacher's scores are absent or non-finite."""
    HISTORY_DIVERGED = "history_diverged"
    """The session went on from a history that does not hold this answer: it was edited, shortened or summarised."""
    REGENERATED = "regenerated"
    """The same request was answered once more, and nothing came after this answer."""
    SUPERSEDED = "superseded"
    """The session's next answer came before anybody had said a word about this one (requests side by side, or a request that
    ends with this answer)."""
    SESSION_CLOSED = "session_closed"
    """The client closed the session without a last word."""
    SESSION_IDLE = "session_idle"
    """Nothing came after it for ``gateway.session_idle_s``."""
    SESSION_EVICTED = "session_evicted"
    """The session had been idle longest when there were more than ``gateway.max_sessions``."""
    TOOL_TURN = "tool_turn"
    """What came after it is a tool's result, and ``judge.tool_turns`` leaves such turns out (or this one of them)."""
    LOOP = "loop"
    """Its session runs in circles: the same call or the same answer ``judge.loop_repeats`` times in a row."""
    JUDGE_OVERFLOW = "judge_overflow"
    """Answer and next state do not fit the judge's context, so asking again cannot help."""


class HintRefusal(StrEnum):
    """Why a hint that a judge gave is not used. Each member is a metric label of ``judge/hints_refused``."""

    TOO_SHORT = "too_short"
    """Fewer than ``judge.min_hint_chars`` characters."""
    QUOTES_ANSWER = "quotes_answer"
    """It names the problem's known answer, which the teacher must not see."""
    CONTEXT_LIMIT = "context_limit"
    """With it, the teacher's sequence would be longer than ``model.context_length``."""
    NO_USER_MESSAGE = "no_user_message"
    """The prompt has no user message that it could be put into."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters that were really used for one turn."""

    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    @property
    def shaped(self) -> bool:
        """True where mu is not the plain tempered softmax (ALGORITHM 6)."""
        return not (
            self.top_p == 1.0
            and self.top_k == -1
            and self.min_p == 0.0
            and self.repetition_penalty == 1.0
            and self.frequency_penalty == 0.0
            and self.presence_penalty == 0.0
        )


@dataclass(frozen=True, slots=True)
class NextState:
    """What came after an answer: the user's next message or a tool's result."""

    role: Literal["user", "tool"]
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the policy to one main-line chat request of a session.

    ``prompt_ids`` [P] and ``response_ids`` [T] are exactly what the engine was given and what it sampled, the
    end-of-turn token included; ``rollout_logprobs`` [T] is log mu(y_t). ``hint_offset`` is the index in
    ``prompt_ids`` right before the end-of-turn token of the last user message, or None if there is no user message.
    """

    turn_id: str
    session_id: str
    index: int
    """0 for a session's first answer."""
    messages: tuple[Message, ...]
    answer: str
    """The answer's text, for people and judges only."""
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    rollout_logprobs: tuple[float, ...]
    sampling: Sampling
    weight_version: int
    """Version of the oldest token."""
    version_spans: tuple[tuple[int, int], ...]
    """(weight version, number of tokens), in the order of ``response_ids``; more than one where a publish came in between."""
    finish_reason: FinishReason
    hint_offset: int | None
    created_at: float
    """Unix time, seconds."""
    generate_s: float
    """Wall time in the engine, seconds."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """The tools that the answer called, in OpenAI's form; ``answer`` is the text beside them."""
    user: str | None = None
    """The person, where the client named one: it narrows the search for a request's session."""


class Question(StrEnum):
    """The two questions that a judge is asked about a turn."""

    REWARD = "reward"
    """Was the answer good (+1), bad (-1) or neither (0)?"""
    HINT = "hint"
    """Does the next state show what would have been better (+1, with a hint) or not (-1)?"""


@dataclass(frozen=True, slots=True)
class Vote:
    """One judge's answer to one question. ``value`` is None where the vote failed or could not be parsed: no vote."""

    question: Question
    value: int | None
    hint: str | None
    raw: str
    """What the judge wrote; where no answer came, why."""
    seconds: float | None = None
    """From the call to its answer; None where no answer came."""
    prompt_tokens: int | None = None
    """As the judge's server counted them; None where it does not say."""
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The majority's verdict on a turn: ``reward`` r in {+1, 0, -1} and the accepted hints, shortest first."""

    turn_id: str
    reward: int
    hints: tuple[str, ...]
    votes: tuple[Vote, ...]
    model: str = ""
    """Who voted: the judge's model, or ``scripted``."""
    prompt_version: str = ""
    """Versions of what it was asked, as in ``reward 2, hint 2``."""
    refused: tuple[tuple[str, str], ...] = ()
    """Hints that were given and are not used: (text, reason), a reason being one of HintRefusal."""
    policy: str = ""
    """The ``judge.unavailable`` policy by which a question without a quorum was left out; empty where both had theirs."""

    @property
    def has_signal(self) -> bool:
        """A turn judged neither good nor bad and without a hint trains nothing and fills no place in a batch."""
        return self.reward != 0 or bool(self.hints)


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sample: a judged turn as the trainer gets it.

    ``loss_mask`` [T] is 1 where the token is trained on. ``teacher_prompt_ids`` holds C <= ``max_candidates`` ragged
    rows, the prompt with hint c spliced in; empty where the sample has no OPD term.
    """

    sample_id: str
    session_id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    rollout_logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    reward: float
    teacher_prompt_ids: tuple[tuple[int, ...], ...]
    hints: tuple[str, ...]
    temperature: float
    shaped: bool
    weight_version: int
    truncated: bool
    persona: str = ""
    """Who talked, where the advantage has a baseline (loss.advantage_baseline)."""
    baseline: float = 0.0
    """Subtracted from the reward: their difference is the advantage."""
