"""Who answers: the gateway and the engines behind it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from openclaw_core.config.section import Section, on_off


class ServerConfig(Section):
    """An SGLang server that a run starts. Which versions are supported: docs/SGLANG.md."""

    device: Literal["npu", "cuda", "cpu"] = Field(default="npu", description="What SGLang runs on.")
    port: int = Field(ge=1, le=65535)
    attention_backend: str | None = Field(
        default=None, description="None: ascend on npu, torch_native on cpu, else its choice."
    )
    page_size: int | None = Field(
        default=None, ge=1, description="Positions of a page of its cache. None: 128 on npu, else its choice."
    )
    mem_fraction_static: float = Field(default=0.8, gt=0, lt=1, description="Share of a card's memory for weights and cache.")
    max_queued_requests: int = Field(default=1024, ge=1, description="Waiting requests; one more is answered with 503.")
    network_interface: str | None = Field(default=None, description="For traffic between ranks; None: the libraries' choice.")
    extra_args: tuple[str, ...] = Field(default=(), description="Appended to its command line as they are.")
    environment: dict[str, str] = Field(default_factory=dict, description="Laid over what the device needs.")
    start_deadline_s: float = Field(default=2400, gt=0, description="From start to the first answer; graph capture takes long.")
    stop_grace_s: float = Field(default=30, gt=0, description="Between SIGTERM and SIGKILL.")

    @model_validator(mode="after")
    def _pages(self) -> Self:
        if self.device == "npu" and self.page_size not in (None, 128):
            raise ValueError(
                f"page_size={self.page_size} of an SGLang server corrupts answers on npu; leave it out, or set 128"
            )
        return self


class SGLangConfig(ServerConfig):
    """The engines' servers (engine.backend: sglang)."""

    port: int = Field(default=30010, ge=1, le=65535, description="Of engine 0; engine i listens on port + i.")
    devices: tuple[int, ...] = Field(
        default=(), description="Cards that a server may see. Empty: those that the plan gives it, else those its parent sees."
    )
    base_gpu_id: int = Field(default=0, ge=0, description="First card of a host's first engine, counted among those it sees.")
    tensor_parallel: int = Field(default=1, ge=1, description="Cards that share one copy of the model.")
    fp32_lm_head: bool = Field(default=True, description="Logits in fp32: bf16 moves log-probs by 0.03 (ALGORITHM 2).")
    health_s: float = Field(default=30, gt=0, description="Deadline of a health check, which runs a token.")
    pause_s: float = Field(default=60, gt=0, description="Deadline for its requests to end at a publish.")
    flush_s: float = Field(default=60, gt=0, description="Deadline for its cache to be emptied.")
    join_s: float = Field(default=120, gt=0, description="Deadline to join the broadcast group.")
    bucket_s: float = Field(default=300, gt=0, description="Deadline of one bucket of weights.")
    verify_s: float = Field(default=120, gt=0, description="Deadline to read version and checksum back.")

    @property
    def engines_on_host(self) -> int | None:
        """How many of its size have room on ``devices`` from ``base_gpu_id`` on; None where no cards are named."""
        return (len(self.devices) - self.base_gpu_id) // self.tensor_parallel if self.devices else None

    @model_validator(mode="after")
    def _cards(self) -> Self:
        if len(set(self.devices)) < len(self.devices):
            raise ValueError(f"engine.sglang.devices={list(self.devices)} names a card twice")
        if self.engines_on_host == 0:
            raise ValueError(
                f"engine.sglang: base_gpu_id={self.base_gpu_id} + tensor_parallel={self.tensor_parallel} = "
                f"{self.base_gpu_id + self.tensor_parallel} cards, and devices={list(self.devices)} are {len(self.devices)}; "
                "name more, or lower one of the two"
            )
        return self


class JudgeServerConfig(ServerConfig):
    """The judge's servers, one on each host with the role prm, on the NPUs that the plan leaves there."""

    port: int = Field(default=30020, ge=1, le=65535, description="The same on every host.")
    context_length: int | None = Field(default=None, ge=1, description="Positions of its cache; None: what its model allows.")


class EngineConfig(Section):
    """The inference engine."""

    backend: Literal["local", "sglang"] = Field(
        default="local", description="local: this project's development engine, on CPU. sglang: a server for each engine."
    )
    count: int = Field(default=1, ge=1, description="Engines; requests go to the one with the fewest.")
    dtype: Literal["bf16", "fp32"] = Field(default="bf16", description="Of the weights that are served.")
    threads: int = Field(default=2, ge=1, description="CPU threads per engine (local).")
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


class GatewayConfig(Section):
    """The OpenAI endpoint."""

    host: str = Field(default="127.0.0.1", description="Address that gateway and control API listen on.")
    session_idle_s: float = Field(
        default=900, gt=0, description="A session without a request for so long is closed: its last answer gets no reaction."
    )
    session_inference: Annotated[Literal["on", "off"], BeforeValidator(on_off)] = Field(
        default="on",
        description="on: a request without a session id belongs to the session whose history it goes on from, else opens one. "
        "off: it is a side turn, from which nothing is learned.",
    )
    max_sessions: int = Field(default=100_000, ge=1, description="More than these: the one idle longest is ended.")
    max_body_bytes: int = Field(default=4_000_000, ge=1000, description="Of one request; a larger one gets a 413.")
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
