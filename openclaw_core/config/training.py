"""How answers become weights: rollout, loss, optimiser, trainer, scorer, teacher (docs/ALGORITHM.md)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from openclaw_core.config.section import Section


class RolloutConfig(Section):
    """How answers are sampled and collected into batches."""

    batch_size: int = Field(default=16, ge=1, description="Samples with a signal per step (ALGORITHM: N).")
    max_response_tokens: int = Field(default=64, ge=1, description="An answer is cut off here.")
    temperature: float = Field(default=0.7, gt=0, le=2, description="Pinned on main turns; 0 is not trainable.")
    repetition_penalty: float = Field(
        default=1.0,
        ge=1,
        le=2,
        description="Of main turns; 1: none. Above 1 it shapes what is sampled, and the loss corrects for that.",
    )
    sampling: Literal["pin", "honour"] = Field(default="pin", description="pin: main turns use exactly the values above.")
    max_staleness: int = Field(
        default=0,
        ge=0,
        le=8,
        description="Lag in versions that is still trained. 0: the feeder waits from batch-full to publish.",
    )
    truncated: Literal["keep", "keep_opd", "mask", "negative"] = Field(
        default="keep",
        description="Answers that hit the length limit. keep: judged as usual, no OPD. keep_opd: as any other, for limits that "
        "nearly every answer hits. mask: not trained on. negative: reward -1.",
    )
    reaction_grace_s: float = Field(
        default=5, ge=0, description="With max_staleness 0: how long an answer keeps its place in the batch for a reaction."
    )
    collect_deadline_s: float = Field(
        default=900, gt=0, description="A collection that takes longer fails the step, saying what it waited for."
    )
    hold_max_s: float = Field(default=120, gt=0, description="How long a request may wait in the gateway.")
    hold_max_requests: int = Field(
        default=1024, ge=1, description="Requests that may wait in the gateway; one more gets a 503."
    )
    on_publish: Literal["continue", "drain"] = Field(
        default="continue",
        description="Answers in the making when weights are published. continue: they go on with the new weights. drain: they "
        "are given drain_max_s to end on the old ones.",
    )
    drain_max_s: float = Field(default=30, ge=0, description="With on_publish=drain; what is left after it goes on as above.")


class LossConfig(Section):
    """The hybrid loss, with the names of ALGORITHM.md."""

    w_rl: float = Field(default=1.0, ge=0, description="Weight of the GRPO term.")
    w_opd: float = Field(default=1.0, ge=0, description="Weight of the on-policy distillation term.")
    advantage_baseline: Literal["none", "persona_mean"] = Field(
        default="none",
        description="Subtracted from the reward. persona_mean: the mean of what this person's turns got in the steps before.",
    )
    kl_coef: float = Field(
        default=0.01, ge=0, description="Weight of the distance to the start model; 0: no reference pass is run."
    )
    entropy_coef: float = Field(default=0.0, ge=0, description="0; anything else is refused, since there is no entropy bonus.")
    topk: int = Field(default=4, ge=1, le=128, description="Tokens of the support at a position (ALGORITHM: K).")
    adv_diff_clip: float = Field(
        default=1.0, description="Bound of the distillation advantage (ALGORITHM: C); 0 or less: none."
    )
    eps_lo: float = Field(default=0.2, gt=0, lt=1, description="Clip of the ratio, below 1.")
    eps_hi: float = Field(default=0.28, gt=0, description="Clip of the ratio, above 1.")
    tis_clip: float = Field(
        default=2.0, ge=0, description="Bound of the engine-trainer weight (ALGORITHM: C_tis); 0: no such weight."
    )
    max_logprob_diff: float = Field(default=1.0, gt=0, description="Mean |ell_old - log mu| above which a sample is masked.")
    max_candidates: int = Field(default=3, ge=1, description="Hints kept per sample.")
    hint_selection: Literal["shortest", "token_optimal", "sequence_optimal", "random"] = Field(
        default="sequence_optimal",
        description="Which hint teaches: the shortest, the nearest to the policy token by token or over the answer, or any.",
    )
    subset_mode: Literal["student", "teacher", "overlap"] = Field(
        default="student", description="Whose top K tokens are the support."
    )
    opd_center: bool = Field(default=False, description="Take the mean over the support from the distillation advantage.")
    shaped_turns: Literal["corrected", "opd_only", "plain"] = Field(
        default="corrected",
        description="Turns sampled with a penalty or a cut-off. opd_only: no GRPO on them. plain: as if not shaped.",
    )
    head_chunk: int = Field(default=1024, ge=1, description="Response positions per chunk of the output head.")


class OptimizerConfig(Section):
    """AdamW (ALGORITHM 13)."""

    lr: float = Field(gt=0, description="Peak learning rate.")
    betas: tuple[float, float] = Field(default=(0.9, 0.98), description="Decay of the first and of the second moment.")
    eps: float = Field(default=1e-8, gt=0, description="Added to the root of the second moment.")
    weight_decay: float = Field(default=0.1, ge=0, description="Decoupled, and not on 1-D parameters.")
    clip_grad: float = Field(default=1.0, gt=0, description="Global L2 norm above which a gradient is scaled down.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Of the learning rate after the warm-up, over train.steps."
    )
    warmup_steps: int = Field(default=0, ge=0, description="Steps in which the rate grows to lr.")


class TrainConfig(Section):
    """The trainer and the length of the run."""

    steps: int = Field(ge=1, description="Rollout steps of the run.")
    steps_per_rollout: int = Field(
        default=1, ge=1, description="Optimiser steps per batch, each on its share of the samples; must divide the batch size."
    )
    seed: int = Field(default=1, ge=0, description="Of whatever the trainer and the scorer draw, as a hint at random.")
    max_tokens_per_rank: int = Field(
        default=1024, ge=1, description="Positions of a micro-batch, padding included; a longer sample is alone in its own."
    )
    tensor_parallel: int = Field(default=1, ge=1, description="Ranks that share the model, all on one host.")
    data_parallel: int = Field(default=1, ge=1, description="Copies of the model that share the batch.")
    sequence_parallel: bool = Field(default=False, description="Split norms and residuals by position; with tensor_parallel.")
    distributed_optimizer: bool = Field(default=False, description="Share the optimiser's state over data_parallel ranks.")
    recompute: Literal["none", "full"] = Field(default="none", description="full: keep layer inputs, recompute the rest.")
    threads: int = Field(default=2, ge=1, description="CPU threads per trainer rank.")
    monitor_every: int = Field(
        default=1,
        ge=1,
        description="Steps that one monitored run of Prefect covers: above 1 for steps of a second or less. It adds 0.2 s.",
    )
    save_interval: int = Field(default=5, ge=1, description="Steps between checkpoints.")
    keep_last: int = Field(default=2, ge=1, description="Newest checkpoints that are kept.")
    keep_every: int = Field(default=0, ge=0, description="Checkpoints of these steps are kept for good; 0: of none.")
    max_consecutive_skips: int = Field(default=3, ge=1, description="Non-finite steps in a row that fail the run.")
    token_tables: int = Field(
        default=20,
        ge=0,
        le=10_000,
        description="Newest steps whose per-token tables are kept (docs/TURNS.md); 0: none are made.",
    )
    parity_probe: int = Field(default=2, ge=0, description="Samples per step whose log-probs the engine recomputes.")
    deadline_s: float = Field(default=1800, gt=0, description="Deadline of one call to the trainer or the scorer.")
    collective_s: float = Field(default=600, gt=0, description="Deadline of one collective between ranks.")
    publish_bucket_mb: float = Field(
        default=512, gt=0, description="Weights that one broadcast carries to an engine; a larger tensor goes by itself."
    )
    silence_s: float = Field(
        default=30, gt=0, description="A rank that does not answer for so long is stuck: the call fails and names it."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ValueError("train.sequence_parallel=true needs train.tensor_parallel above 1; set it to false")
        return self


class ScorerConfig(Section):
    """Who computes old policy, teacher and reference for the loss (ALGORITHM 12)."""

    placement: Literal["colocated", "separate"] = Field(
        default="colocated", description="colocated: the trainer's ranks. separate: workers of their own, while turns come in."
    )
    tensor_parallel: int = Field(default=1, ge=1, description="Ranks that share one copy of the model (separate).")
    data_parallel: int = Field(default=1, ge=1, description="Copies; each scores other samples (separate).")
    threads: int = Field(default=2, ge=1, description="CPU threads per scorer rank (separate).")


class TeacherConfig(Section):
    """Which weights are given the hint."""

    mode: Literal["on_policy", "frozen"] = Field(
        default="on_policy", description="on_policy: the policy at the start of the step. frozen: the start model."
    )
