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
        "bf16", description="bf16: bf16 parameters with fp32 masters. fp32: for exactness tests."
    )


class PathsConfig(Section):
    """Where files go; relative paths are below the directory the command is run in."""

    runs: Path = Field(Path("runs"), description="One directory per run.")
    models: Path = Field(Path("models"), description="Downloaded and converted models, reused between runs.")


class PortsConfig(Section):
    """Every port that a run opens, all on loopback. 0 is not allowed: other processes must know them."""

    gateway: int = Field(30000, ge=1, le=65535, description="The OpenAI-compatible endpoint.")
    control: int = Field(30001, ge=1, le=65535, description="The control API of the training service.")
    prefect: int = Field(4200, ge=1, le=65535, description="Prefect server and UI (make run).")
    ray_gcs: int = Field(6379, ge=1, le=65535, description="Ray head.")
    ray_dashboard: int = Field(8265, ge=1, le=65535, description="Ray dashboard and job API.")
    ray_client: int = Field(10001, ge=1, le=65535, description="Ray client server.")

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
    npus: int = Field(0, ge=0, le=16)


class ClusterConfig(Section):
    """The hosts of a run. Without containers everything runs on this machine."""

    containers: bool = Field(False, description="Run Ray in Docker containers of the project's image.")
    image: str | None = Field(None, description="Image name and tag; needed with containers.")
    hosts: tuple[HostConfig, ...] = Field(min_length=1)
    start_deadline_s: float = Field(
        300, gt=0, description="How long the training service may take to answer after a first start."
    )
    silence_s: float = Field(60, gt=0, description="How long the training service may be silent before it is started again.")
    ray_object_store_mb: int = Field(1500, ge=100, description="Shared memory of Ray's object store on each host.")

    @property
    def npus(self) -> int:
        """NPUs over all hosts."""
        return sum(host.npus for host in self.hosts)


class RolloutConfig(Section):
    """How answers are sampled and collected into batches."""

    batch_size: int = Field(16, ge=1, description="Samples with a signal per step (ALGORITHM: N).")
    max_response_tokens: int = Field(64, ge=1)
    temperature: float = Field(0.7, gt=0, le=2, description="Pinned on main turns; 0 is not trainable.")
    repetition_penalty: float = Field(1.0, ge=1, le=2)
    sampling: Literal["pin", "honour"] = Field("pin", description="pin: main turns use exactly the values above.")
    max_staleness: int = Field(
        0, ge=0, le=8, description="Lag in versions that is still trained. 0: the feeder is held from batch-full to publish."
    )
    truncated: Literal["keep", "keep_opd", "mask", "negative"] = Field(
        "keep",
        description="Answers that hit the length limit. keep: judged as usual, no OPD. keep_opd: as any other, for limits that "
        "nearly every answer hits. mask: not trained on. negative: reward -1.",
    )
    collect_deadline_s: float = Field(
        900, gt=0, description="A collection that takes longer fails the step, saying what it waited for."
    )
    hold_max_s: float = Field(600, gt=0, description="How long a request may wait in the gateway while the feeder is held.")
    hold_max_requests: int = Field(1024, ge=1)


class LossConfig(Section):
    """The hybrid loss, with the names of ALGORITHM.md."""

    w_rl: float = Field(1.0, ge=0)
    w_opd: float = Field(1.0, ge=0)
    kl_coef: float = Field(0.01, ge=0, description="0: no reference pass is run.")
    entropy_coef: float = Field(0.0, ge=0)
    topk: int = Field(4, ge=1, le=128, description="K")
    adv_diff_clip: float = Field(1.0, description="C; 0 or less: no clip.")
    eps_lo: float = Field(0.2, gt=0, lt=1)
    eps_hi: float = Field(0.28, gt=0)
    tis_clip: float = Field(2.0, ge=0, description="C_tis; 0: no engine-trainer weight.")
    max_logprob_diff: float = Field(1.0, gt=0, description="Mean |ell_old - log mu| above which a sample is masked.")
    max_candidates: int = Field(3, ge=1, description="Hints kept per sample.")
    hint_selection: Literal["shortest", "token_optimal", "sequence_optimal", "random"] = "sequence_optimal"
    subset_mode: Literal["student", "teacher", "overlap"] = "student"
    opd_center: bool = False
    advantage_baseline: Literal["none"] = "none"
    shaped_turns: Literal["corrected", "opd_only", "plain"] = "corrected"
    head_chunk: int = Field(256, ge=1, description="Response positions per chunk of the output head.")


class OptimizerConfig(Section):
    """AdamW (ALGORITHM 13)."""

    lr: float = Field(gt=0)
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    clip_grad: float = Field(1.0, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0)


class TrainConfig(Section):
    """The trainer and the length of the run."""

    steps: int = Field(ge=1, description="Rollout steps of the run.")
    seed: int = Field(1, ge=0)
    micro_batch_size: int = Field(4, ge=1)
    tensor_parallel: int = Field(1, ge=1)
    data_parallel: int = Field(1, ge=1)
    threads: int = Field(2, ge=1, description="CPU threads per trainer rank.")
    save_interval: int = Field(5, ge=1, description="Steps between checkpoints.")
    keep_last: int = Field(2, ge=1, description="Checkpoints kept.")
    max_consecutive_skips: int = Field(3, ge=1, description="Non-finite steps in a row that fail the run.")
    parity_probe: int = Field(2, ge=0, description="Samples per step whose log-probs the engine recomputes.")
    start_from: str | None = Field(
        None, description="<run>[/step]: start from another run's checkpoint instead of the base model."
    )
    deadline_s: float = Field(1800, gt=0, description="Deadline of one call to the trainer.")


class EngineConfig(Section):
    """The inference engine."""

    backend: Literal["local", "sglang"] = "local"
    count: int = Field(1, ge=1)
    dtype: Literal["bf16", "fp32"] = "bf16"
    threads: int = Field(2, ge=1)
    max_batch: int = Field(48, ge=1, description="Requests decoded together.")
    batch_window_ms: int = Field(50, ge=0, description="How long the first request of a batch waits for others.")
    deadline_s: float = Field(600, gt=0, description="Deadline of one request to the engine, queueing included.")


class JudgeConfig(Section):
    """Who judges the turns."""

    client: Literal["scripted", "openai", "sglang"] = "scripted"
    votes: int = Field(3, ge=1, le=15, description="M")
    hint_label: str = Field("", description="Put before a hint; empty where the model does better without (MODELS_AND_DATA).")
    min_hint_chars: int = Field(11, ge=1, description="Shorter hints are not accepted.")
    deadline_s: float = Field(60, gt=0, description="Deadline of one vote.")
    retries: int = Field(3, ge=0)


class FeederConfig(Section):
    """The simulated people."""

    personas: tuple[str, ...] = ("student", "ta", "teacher")
    persona_set: str = Field("local", description="Directory under openclaw_core/feeder/personas with the persona files.")
    problems: str = Field("gsm_symbolic", description="Problem source.")
    max_question_chars: int = Field(165, ge=20)
    sessions_in_flight: int = Field(16, ge=1)
    max_turns: int = Field(2, ge=1)
    quote_words: int = Field(20, ge=1, description="Words of the previous person's result that the next one quotes.")
    seed: int = Field(1, ge=0)


class EvaluationConfig(Section):
    """Held-out problems, asked at version 0 and at the end."""

    problems: int = Field(64, ge=1)
    seed: int = Field(7, ge=0)
    concurrency: int = Field(48, ge=1)


class GatewayConfig(Section):
    """The OpenAI endpoint."""

    host: str = "127.0.0.1"
    session_idle_s: float = Field(900, gt=0)
    max_body_bytes: int = Field(4_000_000, ge=1000)


class RunConfig(Section):
    """Everything a run needs to know."""

    preset: str
    model: ModelConfig
    paths: PathsConfig = PathsConfig()
    ports: PortsConfig = PortsConfig()  # pyright: ignore[reportCallIssue]
    cluster: ClusterConfig
    rollout: RolloutConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    train: TrainConfig
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
        return self
