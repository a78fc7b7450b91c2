"""Through the whole gateway: what is captured is what the engine was given and what it sampled, id for id; no body fails it."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from openclaw_core.engines.protocol import GenerateRequest, Tokens
from openclaw_core.gateway.families import ChatMLRenderer, Qwen3FamilyRenderer, Qwen3ThinkingRenderer
from openclaw_core.gateway.openapi import openapi_document
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.types import FinishReason
from tests.exact_tokens import TOOLS, Walk
from tests.gateway_parts import API_KEY, MODEL, Gateway, assemble, tiny_config
from tests.models import tiny_tokenizer
from tests.qwen3_form import tiny_qwen3_tokenizer
from tests.request_bodies import Bodies

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
SCHEMAS = openapi_document(MODEL)["components"]


@dataclass
class DiceEngine:
    """Samples whatever the walk's dice say, in pieces of any length."""

    walk: Walk
    grammars: bool = False
    answers: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    """(input_ids, sampled ids) of each request."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Tokens]:
        sampled = self.walk.sample()[: request.sampling.max_new_tokens] or self.walk.renderer.stop_token_ids[:1]
        self.answers.append((request.input_ids, sampled))
        ended = sampled[-1] in request.stop_token_ids
        at = 0
        while at < len(sampled):
            piece = sampled[at : at + self.walk.dice.randint(1, 4)]
            at += len(piece)
            last = FinishReason.STOP if ended else FinishReason.LENGTH
            top = tuple(((token, -0.5),) for token in piece) if request.top_logprobs else ()
            yield Tokens(piece, (-0.5,) * len(piece), 0, last if at == len(sampled) else None, top)
            await asyncio.sleep(0)

    async def version(self) -> int:
        return 0


def renderer(family: str) -> ChatRenderer:
    if family == "chatml":
        tokenizer = tiny_tokenizer()
        return ChatRenderer(tokenizer, ChatMLRenderer(tokenizer, SYSTEM))
    tokenizer = tiny_qwen3_tokenizer(thinking=family == "thinking")
    return ChatRenderer(tokenizer, (Qwen3ThinkingRenderer if family == "thinking" else Qwen3FamilyRenderer)(tokenizer))


def world(family: str, **overrides: Any) -> tuple[Gateway, DiceEngine]:
    walk = Walk(renderer(family), tools=family != "chatml", seed=5)
    engine = DiceEngine(walk)
    config = tiny_config(**({"model__context_length": 30_000, "rollout__max_response_tokens": 400} | overrides))
    return assemble(walk.renderer, engine, config), engine  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["chatml", "qwen3", "thinking"])
@pytest.mark.parametrize("history", ["rendered", "bridged"])
@pytest.mark.parametrize("stream", [False, True])
async def test_turns_are_captured_as_they_were_sampled(family: str, history: str, stream: bool) -> None:
    gateway, engine = world(family, gateway__history=history)
    walk, seen = engine.walk, Counter[str]()
    for session in range(8):
        messages: list[dict[str, Any]] = []
        new = [walk.user()]
        for _ in range(5):
            messages = [*messages, *new]
            answer = await ask(gateway, f"s{session}", messages, list(walk.tools), stream)
            turn, (given_ids, sampled) = gateway.sink.turns[-1], engine.answers[-1]
            assert (turn.prompt_ids, turn.response_ids) == (given_ids, sampled)
            assert len(turn.rollout_logprobs) == len(sampled)
            rendered = walk.by_template(list(turn.messages))
            if history == "rendered":
                assert turn.prompt_ids == rendered
            elif turn.prompt_ids != rendered:
                before = gateway.sink.turns[-2]
                stored = before.prompt_ids + before.response_ids
                assert turn.prompt_ids[: len(stored)] == stored
                seen["bridged"] += 1
            parsed = walk.renderer.parse(sampled, turn.prompt_ids)
            assert (answer.get("content") or "") == parsed.text
            assert answer.get("reasoning_content") == parsed.reasoning
            assert [call["function"]["arguments"] for call in answer.get("tool_calls") or []] == [
                call.arguments for call in parsed.tool_calls
            ]
            seen["calls"] += bool(parsed.tool_calls)
            messages = [*messages, parsed.message]
            new = walk.reaction(parsed)
    assert len(gateway.sink.turns) == 40
    assert (seen["bridged"] > 0) == (history == "bridged")
    assert (seen["calls"] > 3) == (family != "chatml")


async def ask(gateway: Gateway, session: str, messages: list[Any], tools: list[Any], stream: bool) -> dict[str, Any]:
    """The answer's message; of a stream, put together from its deltas."""
    response = await gateway.chat(messages, session=session, tools=tools, stream=stream)
    assert response.status_code == 200, response.text
    if not stream:
        check("ChatCompletion", response.json())
        return response.json()["choices"][0]["message"]
    whole: dict[str, Any] = {}
    *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    for event in events:
        check("ChatCompletionChunk", chunk := json.loads(event))
        for name, value in chunk["choices"][0]["delta"].items():
            whole[name] = value if name in ("role", "tool_calls") else whole.get(name, "") + value
    return whole


def check(name: str, value: Any) -> None:
    """``value`` is what the OpenAPI document says."""
    Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": SCHEMAS}).validate(value)


def test_no_body_fails_the_gateway() -> None:
    """2,000 bodies, main and side turns, whole and streamed: an answer or a 4xx, and errors in OpenAI's shape."""
    worlds = {family: world(family, model__context_length=1024) for family in ("chatml", "thinking")}
    outcomes: Counter[int] = Counter()
    dice = random.Random(3)

    with asyncio.Runner() as runner:

        @settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
        @given(body=Bodies, family=st.sampled_from(sorted(worlds)), grammars=st.booleans(), session=st.booleans())
        def every(body: bytes, family: str, grammars: bool, session: bool) -> None:
            gateway, engine = worlds[family]
            engine.grammars = grammars
            headers = {"X-Session-Id": f"s{dice.randint(0, 10**9)}"} if session else {}
            response = runner.run(gateway.client.post("/v1/chat/completions", content=body, headers=headers))
            outcomes[response.status_code] += 1
            assert response.status_code < 500, (response.status_code, response.text)
            if response.status_code != 200:
                check("ErrorBody", response.json())
            elif response.headers["content-type"] == "application/json":
                check("ChatCompletion", response.json())
            else:
                assert response.text.endswith("data: [DONE]\n\n")
                assert '"error"' not in response.text.replace('\\"error\\"', "")

        every()
    assert outcomes[200] > 200, outcomes
    assert outcomes[400] > 200, outcomes


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"max_tokens": 30_001}, "messages", "context_length_exceeded"),
        ({"tools": list(TOOLS)}, "tools", "invalid_value"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]", "unsupported_content"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_the_openai_client_understands_refusals(fields: dict[str, Any], param: str, code: str) -> None:
    gateway, _ = world("chatml")
    client = openai.AsyncOpenAI(api_key=API_KEY, base_url="http://gateway/v1", http_client=gateway.client, max_retries=0)
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]} | fields
    request["extra_headers"] = {"X-Turn-Type": "side"}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**request)
    error = refused.value
    assert (error.status_code, error.param, error.code, error.type) == (400, param, code, "invalid_request_error")
    assert isinstance(error.body, dict)
    assert error.body["message"] in str(error)
