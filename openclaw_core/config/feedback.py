"""Where feedback comes from: the judge, the simulated people, the evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from openclaw_core.config.section import Section
from openclaw_core.config.serving import JudgeServerConfig


class JudgeConfig(Section):
    """Who judges the turns, and what is done where no verdict is to be had (docs/JUDGE.md)."""

    client: Literal["scripted", "openai", "sglang"] = Field(
        default="scripted",
        description="scripted: a table of phrases, no model. openai: any OpenAI-compatible endpoint. sglang: SGLang's own.",
    )
    base_urls: tuple[str, ...] = Field(
        default=(), description="Servers that judge: openai with its /v1, sglang without. The least busy one is asked."
    )
    model: str | None = Field(
        default=None,
        description="openai: as the endpoint calls it. sglang: its directory under paths.models; None: model.name.",
    )
    max_tokens: int = Field(default=4096, ge=1, description="Of one vote, reasoning included; a vote that is cut is no vote.")
    temperature: float = Field(default=0.6, ge=0, le=2, description="At 0 the votes on a question are all the same.")
    body: dict[str, Any] = Field(
        default_factory=dict,
        description="openai: laid over each request's body; null takes a field out, as in {max_tokens: null, "
        "max_completion_tokens: 4096, temperature: null} for models that want it so.",
    )
    max_concurrent: int = Field(default=32, ge=1, description="Calls that are in flight together, over all turns.")
    placement: Literal["elsewhere", "prm"] = Field(
        default="elsewhere",
        description="scripted, sglang. prm: the run has it on the hosts with that role, unless base_urls name other servers. "
        "elsewhere: in the service (scripted), or at base_urls.",
    )
    server: JudgeServerConfig = Field(default_factory=JudgeServerConfig)
    votes: int = Field(default=3, ge=1, le=15, description="Votes on a question (ALGORITHM: M).")
    hint_label: str = Field(default="", description="Put before a hint; empty where the model does better without.")
    min_hint_chars: int = Field(default=11, ge=1, description="Shorter hints are not accepted.")
    deadline_s: float = Field(default=60, gt=0, description="Deadline of one call; waiting for its turn is not counted.")
    retries: int = Field(
        default=3, ge=0, description="More calls for a vote that failed; then its turn waits and is asked again."
    )
    unavailable: Literal["wait", "grpo_only", "opd_only"] = Field(
        default="wait",
        description="Where a question has had no quorum for away_s. wait: its turns wait. grpo_only: the reward alone counts, "
        "where it has its quorum. opd_only: the hints alone, with reward 0.",
    )
    away_s: float = Field(default=300, gt=0, description="So long without a quorum: the alert, and the policy above.")
    tool_turns: Literal["score", "skip", "subsample"] = Field(
        default="score",
        description="Turns that a tool's result follows. skip: not trained on. subsample: a share of them is judged.",
    )
    tool_turn_share: float = Field(default=0.25, ge=0, le=1, description="With subsample; which ones is told by their ids.")
    loop_repeats: int = Field(
        default=3, ge=2, description="The same call or the same answer so often in a row keeps a session out of training."
    )

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        for url in self.base_urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"judge.base_urls: {url!r} is no URL; it must be like http://host:30000")
            if parts.username or parts.password:
                raise ValueError(
                    f"judge.base_urls: the URL of {parts.hostname} holds a user or a password; give the key as "
                    "OPENCLAW_JUDGE_API_KEY instead"
                )
        if self.client == "scripted":
            return self
        if not self.base_urls and (self.placement == "elsewhere" or self.client == "openai"):
            raise ValueError(
                f"judge.client={self.client} needs judge.base_urls; start a server (docs/JUDGE.md has the command) and give "
                "its URL, or set judge.client=scripted, or with sglang on hosts of your own judge.placement=prm"
            )
        if self.client == "openai" and not self.model:
            raise ValueError("judge.client=openai needs judge.model, as the endpoint calls it")
        if self.client == "sglang" and self.body:
            raise ValueError("judge.body is for judge.client=openai; with sglang set judge.temperature and judge.max_tokens")
        return self


class OpenClawCLIConfig(Section):
    """The openclaw CLI (feeder.driver: openclaw_cli). Set-up and traps: docs/OPENCLAW_CLI.md."""

    node: Path | None = Field(default=None, description="Node 22.14 or newer. None: of `make openclaw-cli`, else on PATH.")
    package: Path | None = Field(
        default=None, description="The npm package's folder. None: of `make openclaw-cli`, else that of `openclaw` on PATH."
    )
    timeout_s: int = Field(default=600, ge=1, description="Deadline of one turn, tools and held requests included.")
    max_at_once: int = Field(
        default=2, ge=1, description="CLI processes that run together: each takes 2 to 3 CPU-seconds and 300 to 400 MB."
    )
    tools: tuple[Literal["read", "write", "edit", "exec"], ...] = Field(
        default=("read", "write"),
        description="What the assistant may do in the task's folder. exec runs any command with the rights of the feeder: "
        "allow it in a container only.",
    )
    context_window: int | None = Field(
        default=None,
        ge=16_000,
        description="What the CLI is told; it refuses less than 16,000. None: model.context_length. Near its end it "
        "has the history summarised.",
    )
    system_prompt: str | None = Field(default=None, description="In place of the CLI's own, which is 1,700 tokens or more.")
    state: Path | None = Field(
        default=None,
        description="Where its folders are made, and Node keeps compiled scripts. None: a temporary folder of its own.",
    )
    keep_state: Literal["never", "failed", "always"] = Field(
        default="never", description="Folders of ended conversations: transcripts and output, the API key taken out."
    )


class FeederConfig(Section):
    """The simulated people."""

    personas: tuple[str, ...] = Field(default=("student", "ta", "teacher"), description="Files of the set, by name.")
    persona_set: str = Field(
        default="local",
        description="local, homework, homework-zh (Chinese), or the path of a directory of your own with <persona>.yaml files.",
    )
    driver: Literal["client", "openclaw_cli"] = Field(
        default="client", description="How people reach the assistant: the OpenAI client, or the openclaw CLI with file tools."
    )
    simulator: Literal["scripted", "openai"] = Field(
        default="scripted", description="Who plays the people: their files' texts, or a model behind an OpenAI-compatible API."
    )
    simulator_url: str = Field(
        default="https://ark.cn-beijing.volces.com/api/v3", pattern=r"^https?://", description="Base URL of simulator=openai."
    )
    simulator_model: str = Field(default="glm-5.1", min_length=1, description="Model of simulator=openai.")
    simulator_max_tokens: int = Field(default=4096, ge=16, description="Of one message, the model's thoughts included.")
    simulator_max_concurrent: int = Field(default=8, ge=1, description="Calls of that API at once.")
    simulator_deadline_s: float = Field(
        default=120, gt=0, description="Deadline of one call; one that fails is tried again for five times as long."
    )
    problems: str = Field(
        default="gsm_symbolic",
        description="gsm_symbolic, gsm8k, hf://<org>/<name>[@<revision>][/<folder>], or file:///<problems> that ends in .json, "
        ".jsonl or .parquet.",
    )
    shard: int = Field(default=0, ge=0, description="Which of the shards this feeder asks; others ask the rest.")
    shards: int = Field(default=1, ge=1, description="Problem n belongs to shard n modulo shards.")
    epochs: int = Field(default=0, ge=0, description="Passes over the problems until the feeder ends; 0: for ever.")
    max_question_chars: int = Field(default=165, ge=20, description="Longer problems are left out.")
    sessions_in_flight: int = Field(default=16, ge=1, description="Sessions at a time.")
    max_turns: int = Field(default=2, ge=1, description="Answers of a session; a person who is not satisfied by then gives up.")
    quote_words: int = Field(default=20, ge=1, description="Words of the previous person's result that the next one quotes.")
    seed: int = Field(default=1, ge=0, description="Of the problems, and of what people say.")
    cli: OpenClawCLIConfig = Field(default_factory=OpenClawCLIConfig)

    @model_validator(mode="after")
    def _shard_exists(self) -> Self:
        if self.shard >= self.shards:
            raise ValueError(f"feeder.shard={self.shard}, but feeder.shards={self.shards}; shards count from 0")
        return self


class EvaluationConfig(Section):
    """Held-out problems, asked at version 0 and at the end; and how many sessions people need (docs/EVALUATION.md)."""

    problems: int = Field(default=64, ge=1, description="Held-out problems; each is asked for every person.")
    seed: int = Field(default=7, ge=0, description="Of the held-out problems and of their sampling.")
    concurrency: int = Field(default=48, ge=1, description="Questions asked at a time.")
    consecutive: int = Field(
        default=3, ge=1, description="First answers in a row that meet a persona's rule: it has converged."
    )
    max_sessions: int = Field(
        default=72, ge=1, description="Sessions of a persona that count; without convergence in them: this."
    )
    convergence_seeds: int = Field(
        default=0, ge=0, le=100, description="Seeds that are asked as side turns while a run trains, each a trial; 0: none."
    )
    convergence_concurrency: int = Field(default=8, ge=1, description="Those side turns that are in flight together.")

    @model_validator(mode="after")
    def _streak_fits(self) -> Self:
        if self.consecutive > self.max_sessions:
            raise ValueError(
                f"evaluation.consecutive={self.consecutive} cannot be reached within max_sessions={self.max_sessions}; lower it"
            )
        return self
