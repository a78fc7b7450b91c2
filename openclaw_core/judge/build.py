"""The judge that a configuration describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openclaw_core.config.schema import RunConfig
from openclaw_core.judge.client import JudgeClient, JudgeError
from openclaw_core.judge.judge import Judge
from openclaw_core.judge.openai_client import HEADERS, OpenAIJudge
from openclaw_core.judge.prompting import JudgePrompts
from openclaw_core.judge.scripted import ScriptedJudge
from openclaw_core.judge.servers import Servers
from openclaw_core.weights.layout import judge_directory

if TYPE_CHECKING:
    from openclaw_core.judge.sglang_client import SGLangJudge


def build_judge(config: RunConfig, api_key: str | None = None) -> Judge:
    """The judge of ``config.judge``. ``api_key``: what its servers want to see; never logged.

    Raises JudgeError where the files that its client needs are not there.
    """
    return Judge(
        _client(config, api_key),
        votes=config.judge.votes,
        min_hint_chars=config.judge.min_hint_chars,
        max_candidates=config.loss.max_candidates,
        deadline_s=config.judge.deadline_s,
        retries=config.judge.retries,
        max_concurrent=config.judge.max_concurrent,
    )


def _client(config: RunConfig, api_key: str | None) -> JudgeClient:
    judge = config.judge
    if judge.client == "openai":
        assert judge.model is not None, "the configuration demands it"
        return OpenAIJudge(
            Servers(judge.base_urls, api_key=api_key, trust_env=True, headers=HEADERS),
            JudgePrompts.load(),
            model=judge.model,
            max_tokens=judge.max_tokens,
            temperature=judge.temperature,
            deadline_s=judge.deadline_s,
            body=judge.body,
        )
    if judge.client == "sglang":
        return _sglang(config, api_key)
    if judge.placement == "prm":
        from openclaw_core.judge.placed import PlacedJudge  # brings in Ray

        return PlacedJudge(config)
    return ScriptedJudge()


def _sglang(config: RunConfig, api_key: str | None) -> SGLangJudge:
    # transformers comes with it, which the other clients do without.
    from openclaw_core.gateway.families import RenderError
    from openclaw_core.gateway.rendering import ChatRenderer
    from openclaw_core.judge.sglang_client import SGLangJudge

    model, directory = config.judge_model, judge_directory(config)
    try:
        renderer = ChatRenderer.from_pretrained(directory)
    except (OSError, RenderError) as error:
        raise JudgeError(
            f"the judge {model} needs its tokenizer and chat template in {directory} ({error}); put the model's files "
            "there, or ask its server's OpenAI endpoint instead: judge.client=openai with /v1 at the end of judge.base_urls"
        ) from error
    return SGLangJudge(
        servers=Servers(config.judge_urls, api_key=api_key, trust_env=False),
        prompts=JudgePrompts.load(),
        renderer=renderer,
        model=model,
        max_tokens=config.judge.max_tokens,
        temperature=config.judge.temperature,
        deadline_s=config.judge.deadline_s,
    )
