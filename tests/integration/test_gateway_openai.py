"""The stock openai client against a real server with a real engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.engines.local import LocalEngine
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.types import NextState, TurnType
from openclaw_core.weights.checksum import checksum
from tests.gateway_parts import API_KEY, MODEL, tiny_config, user
from tests.gateway_server import START_DEADLINE_S, Served, serve
from tests.models import tiny_llama, tiny_qwen3

SIDE = {"X-Turn-Type": "side"}
QUESTION = [user("Tom has 3 boxes with 4 apples each. How many apples?")]


@contextlib.asynccontextmanager
async def serving(model: Path, batch_size: int | None = None) -> AsyncIterator[Served]:
    engine = LocalEngine(model, dtype="fp32", threads=1)
    async with serve(ChatRenderer.from_pretrained(model), engine, tiny_config(), batch_size=batch_size) as served:
        yield served
    engine.close()


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3], ids=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"), dtype=torch.float32)


@pytest.fixture
async def served(model: Path) -> AsyncIterator[Served]:
    async with serving(model) as served:
        yield served


async def test_the_client_gets_an_answer_and_its_headers(served: Served) -> None:
    raw = await served.client().chat.completions.with_raw_response.create(
        model=MODEL,
        messages=QUESTION,
        extra_headers={"X-Session-Id": "s"},  # pyright: ignore[reportArgumentType]
    )
    completion = raw.parse()
    (turn,) = served.sink.turns
    assert completion.choices[0].message.content == turn.answer
    assert completion.usage is not None
    assert completion.usage.completion_tokens == len(turn.response_ids)
    assert raw.headers["x-openclaw-turn-id"] == turn.turn_id


async def test_the_client_streams_the_same_answer(served: Served) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "seed": 3, "max_tokens": 20, "extra_headers": SIDE}
    whole = await served.client().chat.completions.create(**fields)
    stream = await served.client().chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason


async def test_the_synchronous_client_works_too(served: Served) -> None:
    def talk() -> tuple[list[str], str | None, str]:
        with openai.OpenAI(base_url=served.url, api_key=API_KEY, max_retries=0) as client:
            models = [model.id for model in client.models.list()]
            fields: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": 0, "extra_headers": SIDE}
            whole = client.chat.completions.create(**fields).choices[0].message.content
            pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**fields, stream=True)]
            return models, whole, "".join(pieces)

    models, whole, streamed = await asyncio.to_thread(talk)
    assert models == [MODEL]
    assert whole == streamed


async def test_a_conversation_is_captured_with_the_ids_that_were_sampled(served: Served, model: Path) -> None:
    """Two turns, the answer sent back as the client's own object; every stored id and log-prob checked by a plain model."""
    client, history = served.client(default_headers={"X-Session-Id": "s"}), list[Any](QUESTION)
    for reaction in ("Shorter, please.", "Thanks."):
        answer = await client.chat.completions.create(model=MODEL, messages=history)
        history += [answer.choices[0].message, user(reaction)]
    await client.post("/sessions/s/close", cast_to=object, body={"message": history[-1]})
    turns, states = served.sink.turns, served.sink.states
    assert [states[turn.turn_id] for turn in turns] == [NextState("user", "Shorter, please."), NextState("user", "Thanks.")]
    plain: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for turn in turns:
        assert turn.prompt_ids == served.renderer.render(turn.messages).prompt_ids
        assert turn.answer == served.renderer.parse(turn.response_ids, turn.prompt_ids).text
        with torch.no_grad():
            logits = plain(torch.tensor([[*turn.prompt_ids, *turn.response_ids]])).logits[0, len(turn.prompt_ids) - 1 : -1]
        expected = torch.log_softmax(logits / turn.sampling.temperature, dim=-1)
        found = expected.gather(1, torch.tensor(turn.response_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(turn.rollout_logprobs), found, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("options", "fields", "error", "code"),
    [
        ({}, {"messages": []}, openai.BadRequestError, "invalid_value"),
        ({}, {"messages": [{"role": "wizard", "content": "x"}]}, openai.BadRequestError, "invalid_value"),
        ({}, {"messages": [user("word " * 500)]}, openai.BadRequestError, "context_length_exceeded"),
        ({}, {"model": "gpt-5"}, openai.NotFoundError, "model_not_found"),
        ({"api_key": "wrong"}, {}, openai.AuthenticationError, "invalid_api_key"),
    ],
)
async def test_the_client_understands_every_error(
    served: Served, options: dict[str, Any], fields: dict[str, Any], error: type[openai.APIStatusError], code: str
) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "extra_headers": {"X-Session-Id": "s"}} | fields
    with pytest.raises(error) as refused:
        await served.client(**options).chat.completions.create(**body)
    assert refused.value.code == code
    assert served.sink.events == []


async def test_no_request_fails_and_no_turn_is_lost_while_weights_are_published(
    served: Served, model: Path, tmp_path: Path
) -> None:
    """Sessions talk on while three versions are published; every answer names the version that made it."""
    client = served.client()

    async def session(name: str) -> list[int]:
        history, versions = list[Any](QUESTION), list[int]()
        for _ in range(4):
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL, messages=history, extra_headers={"X-Session-Id": name}
            )
            history += [raw.parse().choices[0].message, user("Go on.")]
            versions.append(int(raw.headers["x-openclaw-weight-version"]))
        return versions

    sessions = [asyncio.create_task(session(f"s{number}")) for number in range(6)]
    weights = {name: tensor.detach() for name, tensor in AutoModelForCausalLM.from_pretrained(model).named_parameters()}
    for version in (1, 2, 3):
        await asyncio.sleep(0.1)
        served.room.pause()
        await served.engine.pause()
        captured = len(served.sink.turns)
        await served.engine.load_weights(weights, version, checksum(weights.items()))
        assert len(served.sink.turns) == captured
        await served.engine.resume()
        served.room.resume()
    seen = await asyncio.gather(*sessions)
    assert all(versions == sorted(versions) for versions in seen)
    assert sorted(turn.weight_version for turn in served.sink.turns) == sorted(
        version for versions in seen for version in versions
    )
    assert len(served.sink.turns) == 24


async def test_a_full_batch_holds_main_turns_but_neither_their_reactions_nor_side_turns(model: Path) -> None:
    """max_staleness 0: the second turn of a session waits for the publish; what it says about the first is there at once."""
    async with serving(model, batch_size=1) as served:
        client = served.client()

        async def ask(messages: list[Any], turn_type: TurnType) -> Any:
            headers = {"X-Session-Id": "s", "X-Turn-Type": turn_type.value}
            return await client.chat.completions.create(model=MODEL, messages=messages, extra_headers=headers)

        first = await ask(QUESTION, TurnType.MAIN)
        second = asyncio.create_task(ask([*QUESTION, first.choices[0].message, user("Go on.")], TurnType.MAIN))
        async with asyncio.timeout(START_DEADLINE_S):
            while not served.sink.states:
                await asyncio.sleep(0.01)
        await ask(QUESTION, TurnType.SIDE)
        assert (served.room.queue, second.done()) == (1, False)
        served.sink.judging.clear()
        served.room.notify()
        await second
        assert [turn.index for turn in served.sink.turns] == [0, 1]
