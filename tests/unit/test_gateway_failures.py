"""What the gateway says when something is wrong, and that nothing is captured then and nothing secret is logged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from openclaw_core.engines.local import LocalEngine
from openclaw_core.engines.protocol import EngineError, GenerateRequest, Tokens
from openclaw_core.gateway.rendering import ChatRenderer
from tests.gateway_parts import API_KEY, MODEL, Gateway, assemble, assistant, tiny_config, user

HI = [user("Tom has 3 boxes.")]


class BrokenEngine:
    """An engine whose process is gone."""

    grammars = False

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        raise EngineError("engine-0 is dead: 10.0.0.7 went away")
        yield

    async def prefill_logprobs(self, prompt_ids: Any, response_ids: Any, temperature: float) -> tuple[float, ...]:
        raise EngineError("engine-0 is dead")

    async def pause(self) -> None:
        raise EngineError("engine-0 is dead")

    async def resume(self) -> None:
        raise EngineError("engine-0 is dead")

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        raise EngineError("engine-0 is dead")

    async def version(self) -> int:
        raise EngineError("engine-0 is dead")


ERRORS: list[tuple[dict[str, Any], dict[str, str], int, str | None, str | None]] = [
    ({"messages": []}, {}, 400, "invalid_value", "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, {}, 400, "invalid_value", "messages[0].role"),
    ({"model": "gpt-5"}, {}, 404, "model_not_found", "model"),
    ({"messages": [user("word " * 400)]}, {"X-Turn-Type": "side"}, 400, "context_length_exceeded", "messages"),
    ({"max_tokens": 250}, {"X-Turn-Type": "side"}, 400, "context_length_exceeded", "messages"),
    ({"user": "x" * 9000}, {}, 413, "request_too_large", None),
    ({}, {"X-Turn-Type": "middle"}, 400, "invalid_value", "X-Turn-Type"),
    ({}, {"X-Session-Done": "maybe"}, 400, "invalid_value", "X-Session-Done"),
    ({}, {"X-Turn-Type": "main", "X-Session-Id": ""}, 400, "invalid_value", "X-Session-Id"),
    ({}, {"X-Session-Done": "1", "X-Session-Id": ""}, 400, "invalid_value", "X-Session-Done"),
    ({}, {"Authorization": "Bearer wrong"}, 401, "invalid_api_key", None),
    ({}, {"Authorization": ""}, 401, "invalid_api_key", None),
    ({}, {"Authorization": f"Basic {API_KEY}"}, 401, "invalid_api_key", None),
    ({"messages": [], "model": "x"}, {"Authorization": "Bearer ü"}, 401, "invalid_api_key", None),
]


@pytest.mark.parametrize(("body", "headers", "status", "code", "param"), ERRORS, ids=lambda value: str(value)[:30])
async def test_an_error_has_openais_shape_and_captures_nothing(
    renderer: ChatRenderer,
    engine: LocalEngine,
    body: dict[str, Any],
    headers: dict[str, str],
    status: int,
    code: str | None,
    param: str | None,
) -> None:
    gateway = assemble(renderer, engine, tiny_config(gateway__max_body_bytes=8000, gateway__session_inference="off"))
    answer = (await gateway.chat(HI, session="s")).json()["choices"][0]["message"]["content"]
    events = list(gateway.sink.events)
    follow_up = {"model": MODEL, "messages": [*HI, assistant(answer), user("Go on.")], **body}
    raw_headers = {name: value.encode() for name, value in ({"X-Session-Id": "s"} | headers).items()}
    response = await gateway.client.post("/v1/chat/completions", json=follow_up, headers=raw_headers)  # pyright: ignore[reportArgumentType]
    assert response.status_code == status
    error = response.json()["error"]
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert API_KEY not in error["message"]
    assert gateway.sink.events == events


async def test_one_key_has_its_share_of_the_requests_in_flight(renderer: ChatRenderer, engine: LocalEngine) -> None:
    gateway = assemble(renderer, engine, tiny_config(gateway__max_concurrent_per_key=1))
    gateway.room.pause()
    waiting = asyncio.create_task(gateway.chat(HI, session="s"))
    while not gateway.room.queue:
        await asyncio.sleep(0.001)
    response = await gateway.chat(HI, session="t")
    assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "'test'" in response.json()["error"]["message"]
    gateway.room.resume()
    assert (await waiting).status_code == 200
    assert (await gateway.chat(HI, session="t")).status_code == 200


async def test_a_dead_engine_is_a_502_without_its_secrets_and_captures_no_turn(renderer: ChatRenderer) -> None:
    gateway = assemble(renderer, BrokenEngine())
    response = await gateway.chat(HI, session="s")
    assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_error")
    assert "10.0.0.7" not in response.text
    assert gateway.sink.events == []
    assert gateway.room.in_flight == 0
    health = await gateway.client.get("/healthz")
    assert (health.status_code, health.json()) == (503, {"accepting": False, "version": None, "queue": 0})


async def test_past_the_bounds_of_the_waiting_room_is_a_503_with_retry_after(
    renderer: ChatRenderer, engine: LocalEngine
) -> None:
    gateway = assemble(renderer, engine, hold_max_s=0.01)
    gateway.room.pause()
    response = await gateway.chat(HI, session="s")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
    assert int(response.headers["retry-after"]) > 0
    assert gateway.sink.events == []


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/completions", 404), ("GET", "/v1/chat/completions", 405)])
async def test_an_unknown_route_is_an_openai_error_too(gateway: Gateway, method: str, path: str, status: int) -> None:
    response = await gateway.client.request(method, path)
    assert response.status_code == status
    assert path in response.json()["error"]["message"]


async def test_a_sink_that_fails_is_a_500_and_leaves_no_request_in_flight(
    renderer: ChatRenderer, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = assemble(renderer, engine)

    def full(turn: Any) -> None:
        raise OSError("No space left on device: /runs/x/ledger.sqlite")

    monkeypatch.setattr(gateway.sink, "turn", full)
    response = await gateway.chat(HI, session="s")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "ledger" not in response.text
    assert gateway.room.in_flight == 0


async def test_neither_prompts_nor_answers_are_logged_above_debug(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    await gateway.chat([user("Tom has a secret.")], session="s")
    await gateway.chat([{"role": "secret", "content": "secret"}], session="s")
    (turn,) = gateway.sink.turns
    logged = [line for line in capsys.readouterr().out.splitlines() if "debug" not in line]
    assert any("chat_answered" in line for line in logged)
    assert any("request_refused" in line for line in logged)
    assert not any("secret" in line or turn.answer in line for line in logged)
