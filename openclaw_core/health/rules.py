"""The rules as data: which metric says what, in words (ALGORITHM 10). Bounds and steps belong to the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a run is, from best to worst."""

    HEALTHY = "healthy"
    WARN = "warn"
    STOP = "stop"


class Kind(StrEnum):
    """How a metric's value is held against the rule's bound."""

    ABOVE = "above"
    BELOW = "below"
    GROWN = "grown"
    """Over bound times the run's own beginning: the median of the first BASELINE values."""
    FALLEN = "fallen"
    """Under bound times the run's own beginning."""
    LOST = "lost"
    """More than bound below the best mean of BASELINE values in a row so far: for metrics that may be negative."""
    COUNTED_UP = "counted_up"
    """More than bound over the step before: for metrics that only count up."""


BASELINE = 5
"""Values that make the beginning of a run, and the best of it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``reason`` begins the sentence that the metric's value goes on; ``advice`` ends it."""

    name: str
    metric: str
    """Key of docs/METRICS.md."""
    kind: Kind
    state: State
    reason: str
    advice: str
    about_opd: bool = False
    """A lower w_opd does something about it."""
    times_clip: bool = False
    """The bound is in units of loss.adv_diff_clip; without a clip the rule says nothing."""
    noise: float = 0.0
    """Values up to this are well, whatever they have grown from."""


_PARITY = "train/engine_parity_abs_diff"
_DRIFT = (
    "look whether every publish reached every engine (versions and checksums in the service's log), and at the engine's build"
)
_LR = "lower optimizer.lr, and take up an earlier checkpoint"

RULES: tuple[Rule, ...] = (
    Rule(
        "grad_norm_high",
        "train/grad_norm",
        Kind.ABOVE,
        State.WARN,
        "Gradients are large",
        "healthy is 2 to 5; lower optimizer.lr if it goes on",
    ),
    Rule("grad_norm_diverging", "train/grad_norm", Kind.ABOVE, State.STOP, "Training diverges", _LR),
    Rule("engine_parity_high", _PARITY, Kind.ABOVE, State.WARN, "Engine and trainer disagree", _DRIFT),
    Rule("engine_parity_growing", _PARITY, Kind.GROWN, State.WARN, "Engine and trainer drift apart", _DRIFT, noise=0.005),
    Rule("engine_parity_lost", _PARITY, Kind.ABOVE, State.STOP, "The engine serves other weights than the trainer's", _DRIFT),
    Rule(
        "logprob_diff_high",
        "train/train_rollout_logprob_abs_diff_unshaped",
        Kind.ABOVE,
        State.WARN,
        "The log-probs of the answers are not the trainer's",
        f"{_DRIFT}; with staleness, lower rollout.max_staleness",
    ),
    Rule(
        "shaped_logprob_diff_growing",
        "train/train_rollout_logprob_abs_diff_shaped",
        Kind.GROWN,
        State.WARN,
        "The log-probs of shaped answers move away from the trainer's",
        f"{_DRIFT}; or lower rollout.repetition_penalty",
        noise=0.005,
    ),
    Rule(
        "tis_low",
        "train/tis_mean",
        Kind.BELOW,
        State.WARN,
        "The engine's answers are unlikely for the trainer",
        _DRIFT,
    ),
    Rule(
        "tis_clipped",
        "train/tis_clipfrac",
        Kind.ABOVE,
        State.WARN,
        "The engine-trainer weight is often at its cap",
        f"{_DRIFT}; look at the sampling parameters of the turns",
    ),
    Rule(
        "opd_strong",
        "train/opd_abs_mean",
        Kind.ABOVE,
        State.WARN,
        "The hinted teacher is far from the policy",
        "read the hints of the last steps; or lower loss.w_opd",
        about_opd=True,
        times_clip=True,
    ),
    Rule(
        "opd_saturated",
        "train/opd_abs_mean",
        Kind.ABOVE,
        State.STOP,
        "OPD saturated",
        "check that the maximum is subtracted from the teacher's log-probs (ALGORITHM 9); or lower loss.w_opd",
        about_opd=True,
        times_clip=True,
    ),
    Rule(
        "overlap_falling",
        "train/sel_overlap",
        Kind.FALLEN,
        State.WARN,
        "The teacher's likely tokens are less and less the policy's",
        "OPD pulls in a wrong direction: read the hints; or lower loss.w_opd",
        about_opd=True,
    ),
    Rule(
        "kl_high",
        "train/kl",
        Kind.ABOVE,
        State.WARN,
        "The policy is far from the model it began as",
        "lower optimizer.lr, or raise loss.kl_coef",
    ),
    Rule(
        "kl_diverging",
        "train/kl",
        Kind.ABOVE,
        State.STOP,
        "Hardly anything is left of the model that the run began with",
        _LR,
    ),
    Rule(
        "entropy_collapsing",
        "train/entropy",
        Kind.FALLEN,
        State.WARN,
        "The policy says the same again and again",
        "raise loss.kl_coef or lower optimizer.lr; read some answers",
    ),
    Rule(
        "entropy_exploding",
        "train/entropy",
        Kind.GROWN,
        State.STOP,
        "The policy turns into noise",
        _LR,
    ),
    Rule(
        "response_growing",
        "rollout/response_len",
        Kind.GROWN,
        State.WARN,
        "Answers run away",
        "read some: thinking loops, or an end-of-turn token that is no longer sampled; lower rollout.max_response_tokens or "
        "set rollout.truncated=negative",
    ),
    Rule(
        "response_shrinking",
        "rollout/response_len",
        Kind.FALLEN,
        State.WARN,
        "Answers get very short",
        "read some: the judge may reward saying nothing",
    ),
    Rule(
        "truncated_high",
        "rollout/truncated_ratio",
        Kind.ABOVE,
        State.WARN,
        "Answers hit the length limit",
        "thinking loops: raise rollout.repetition_penalty or rollout.max_response_tokens, or set rollout.truncated=negative",
    ),
    Rule(
        "reward_collapsing",
        "rollout/reward_mean",
        Kind.LOST,
        State.WARN,
        "The reward has collapsed",
        "read the answers and the judge's votes of the last steps (openclaw-rl turns list); an earlier checkpoint was better",
    ),
    Rule(
        "no_signal_high",
        "rollout/no_signal_rate",
        Kind.ABOVE,
        State.WARN,
        "Most verdicts say nothing",
        "the judge finds turns neither good nor bad: look at its prompt and at its model",
    ),
    Rule(
        "judge_unreadable",
        "judge/parse_failure_share",
        Kind.ABOVE,
        State.WARN,
        "The judge's answers cannot be read",
        "raise judge.max_tokens if they are cut; else the judge's model does not follow its prompt",
    ),
    Rule(
        "step_skipped",
        "train/skipped_steps",
        Kind.COUNTED_UP,
        State.WARN,
        "An update was skipped, as its gradient was not finite",
        "the samples are named under train/bad_samples; lower optimizer.lr if it happens again",
    ),
)

BY_NAME = {rule.name: rule for rule in RULES}
