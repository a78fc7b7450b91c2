"""The one configuration tree of a run. Every field is bounded and says why it exists; presets fill it, overrides change it.

Read once at the rim (``load_config``) and passed down; nothing below this package reads the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _on_off(value: Any) -> Any:
    """YAML reads a bare on or off as a boolean."""
    return ("off", "on")[value] if isinstance(value, bool) else value


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
    hold_max_s: float = Field(default=120, gt=0, description="How long a request may wait in the gateway.")
    hold_max_requests: int = Field(default=1024, ge=1)
    on_publish: Literal["continue", "drain"] = Field(
        default="continue",
        description="Answers in the making when weights are published. continue: they go on with the new weights. drain: they "
        "are given drain_max_s to end on the old ones.",
    )
    drain_max_s: float = Field(default=30, ge=0, description="With on_publish=drain; what is left after it goes on as above.")


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


class SGLangConfig(Section):
    """SGLang's servers (engine.backend: sglang). Which versions are supported: docs/SGLANG.md."""

    device: Literal["npu", "cuda", "cpu"] = "npu"
    devices: tuple[int, ...] = Field(default=(), description="Cards that a server may see; empty: those its parent sees.")
    base_gpu_id: int = Field(default=0, ge=0, description="First card of engine 0, counted among those that it sees.")
    tensor_parallel: int = Field(default=1, ge=1, description="Cards that share one copy of the model.")
    port: int = Field(default=30010, ge=1, le=65535, description="Of engine 0; engine i listens on port + i, on loopback.")
    attention_backend: str | None = Field(
        default=None, description="None: ascend on npu, torch_native on cpu, else its choice."
    )
    page_size: int | None = Field(
        default=None, ge=1, description="Positions of a page of its cache. None: 128 on npu, else its choice."
    )
    fp32_lm_head: bool = Field(default=True, description="Logits in fp32: bf16 moves log-probs by 0.03 (ALGORITHM 2).")
    mem_fraction_static: float = Field(default=0.8, gt=0, lt=1, description="Share of a card's memory for weights and cache.")
    max_queued_requests: int = Field(default=1024, ge=1, description="Waiting requests; one more is answered with 503.")
    network_interface: str | None = Field(default=None, description="For traffic between ranks; None: the libraries' choice.")
    extra_args: tuple[str, ...] = Field(default=(), description="Appended to its command line as they are.")
    environment: dict[str, str] = Field(default_factory=dict, description="Laid over what the device needs.")
    start_deadline_s: float = Field(default=2400, gt=0, description="From start to the first answer; graph capture takes long.")
    stop_grace_s: float = Field(default=30, gt=0, description="Between SIGTERM and SIGKILL.")
    health_s: float = Field(default=30, gt=0, description="Deadline of a health check, which runs a token.")
    pause_s: float = Field(default=60, gt=0, description="Deadline for its requests to end at a publish.")
    flush_s: float = Field(default=60, gt=0, description="Deadline for its cache to be emptied.")
    join_s: float = Field(default=120, gt=0, description="Deadline to join the broadcast group.")
    bucket_s: float = Field(default=300, gt=0, description="Deadline of one bucket of weights.")
    verify_s: float = Field(default=120, gt=0, description="Deadline to read version and checksum back.")

    @model_validator(mode="after")
    def _pages(self) -> Self:
        if self.device == "npu" and self.page_size not in (None, 128):
            raise ValueError(f"engine.sglang.page_size={self.page_size} corrupts answers on npu; leave it out, or set 128")
        return self


class EngineConfig(Section):
    """The inference engine."""

    backend: Literal["local", "sglang"] = "local"
    count: int = Field(default=1, ge=1)
    dtype: Literal["bf16", "fp32"] = "bf16"
    threads: int = Field(default=2, ge=1)
    max_batch: int = Field(default=48, ge=1, description="Requests decoded together.")
    max_queue: int = Field(default=1024, ge=1, description="Requests that wait for a place among those; more are refused.")
    cache_tokens: int = Field(
        default=65_536,
        ge=1,
        description="Bound of the local engine's keys and values: requests decoded together times the longest of them.",
    )
    prefix_cache_tokens: int = Field(
        default=16_384, ge=0, description="Keys and values kept of ended requests, for a session's next turn; 0: none."
    )
    deadline_s: float = Field(
        default=600, gt=0, description="How long a request may be without a token, queueing included; deadline of other calls."
    )
    sglang: SGLangConfig = Field(default_factory=SGLangConfig)


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
    session_inference: Annotated[Literal["on", "off"], BeforeValidator(_on_off)] = Field(
        default="on",
        description="on: a request without a session id belongs to the session whose history it goes on from, else opens one. "
        "off: it is a side turn, from which nothing is learned.",
    )
    max_sessions: int = Field(default=100_000, ge=1, description="More than these: the one idle longest is ended.")
    max_body_bytes: int = Field(default=4_000_000, ge=1000)
    max_messages: int = Field(default=4096, ge=1, description="Messages of one request.")
    history: Literal["rendered", "bridged"] = Field(
        default="rendered",
        description="How a session's earlier turns enter a prompt. rendered: as the chat template writes them. bridged: with "
        "the very ids that were sampled, where the model's family allows it (within a tool cycle; ChatML always).",
    )
    max_concurrent_per_key: int = Field(default=1024, ge=1, description="Requests of one API key that are in flight together.")
    client_timeout_s: float = Field(
        default=60, gt=0, description="How long a client may take to send its request, or to take a piece of its answer."
    )


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
        if self.engine.backend == "sglang":
            own = range(self.engine.sglang.port, self.engine.sglang.port + self.engine.count)
            for name, port in self.ports:
                if port in own:
                    raise ValueError(f"ports.{name}={port} is one of the engines' ({own.start} on); move engine.sglang.port")
        if self.rollout.batch_size % self.train.steps_per_rollout:
            raise ValueError(
                f"train.steps_per_rollout={self.train.steps_per_rollout} does not divide "
                f"rollout.batch_size={self.rollout.batch_size}; choose a divisor"
            )
        return self
