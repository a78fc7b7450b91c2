"""The OpenAI judge over real HTTP: our own gateway as its endpoint, and an endpoint that is in every kind of trouble."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from openclaw_core.config import load_config
from openclaw_core.judge import (
    Judge,
    JudgeDenied,
    JudgeError,
    JudgeOverflow,
    JudgeRefused,
    JudgeUnavailable,
    build_judge,
)
from openclaw_core.judge.servers import Servers
from openclaw_core.types import Question
from tests.gateway_world import API_KEY, build_world
from tests.judge_parts import COMPLAINT, TURN

KEY = "sk-judge-key-that-nobody-may-see"


def judge_at(*urls: str, key: str | None = KEY, **overrides: Any) -> Judge:
    values = {"client": "openai", "base_urls": list(urls), "model": "judge-1", "retries": 0, "deadline_s": 20} | overrides
    return build_judge(load_config("local-cpu", {f"judge.{name}": value for name, value in values.items()}), key)


def like_a_judge(prompt: str) -> str:
    """What a model writes that was told to judge."""
    if "hindsight" in prompt:
        return "It sounds cold.\n\\boxed{1}\n[HINT_START]Be warm and kind to the pupil.[HINT_END]"
    return "A complaint, so:\n\\boxed{-1}"


async def test_a_turn_is_judged_by_a_model_behind_our_own_gateway_and_is_not_captured_there(tiny_llama_dir: Path) -> None:
    world = build_world(tiny_llama_dir, like_a_judge, {"model.context_length": 8192, "rollout.max_response_tokens": 512})
    async with world.serving_gateway():
        model = world.config.model.name
        judge = judge_at(world.gateway_url, key=API_KEY, model=model, max_tokens=300)
        judgement = await judge.judge(TURN, COMPLAINT)
        await judge.close()
    assert (judgement.reward, judgement.hints) == (-1, ("Be warm and kind to the pupil.",))
    assert (judgement.model, judgement.prompt_version) == (model, "reward 2, hint 2")
    assert all(vote.prompt_tokens and vote.completion_tokens for vote in judgement.votes)
    assert "It is **7**." in world.engine.text(world.engine.requests[0])
    assert "That sounds cold." in world.engine.text(world.engine.requests[0])
    assert world.journal == [], "a side turn"
    assert world.engine.most_busy == 6, "all votes at once"


@contextlib.asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(20):
            while not server.started:
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server.should_exit = True
        await task


class Endpoint:
    """Answers with what ``answers`` gives, then with a verdict; remembers what it was sent."""

    def __init__(self, answers: list[Callable[[], Response]] | None = None) -> None:
        self.answers, self.bodies, self.headers = answers or [], list[dict[str, Any]](), list[dict[str, str]]()
        self.gate = asyncio.Event()
        self.gate.set()
        self.busy = 0
        self.app = FastAPI()
        self.app.add_api_route("/v1/chat/completions", self.complete, methods=["POST"], response_model=None)

    async def complete(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        self.busy += 1
        await self.gate.wait()
        self.busy -= 1
        return self.answers.pop(0)() if self.answers else completion("\\boxed{-1}")


def completion(content: str | None, finish: str = "stop", **message: Any) -> JSONResponse:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    usage = {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}
    return JSONResponse({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage})


def error(status: int, message: str, code: str | None = None, **headers: str) -> Callable[[], Response]:
    body = {"error": {"message": message, "type": "error", "code": code}}
    return lambda: JSONResponse(body, status, headers={name.replace("_", "-"): value for name, value in headers.items()})


async def ask(endpoint: Endpoint, **overrides: Any) -> Any:
    """One vote of one client."""
    async with serving(endpoint.app) as url:
        judge = judge_at(url, **overrides)
        try:
            return await judge.client.vote(Question.REWARD, TURN.answer, COMPLAINT, 0)
        finally:
            await judge.close()


TROUBLE = [
    (error(400, "bad temperature"), JudgeRefused, "400: bad temperature; mend judge.model, judge.body"),
    (error(422, "what is this"), JudgeRefused, "judge.body"),
    (error(404, "no model judge-1"), JudgeRefused, "judge.base_urls or judge.model"),
    (error(400, "too long", "context_length_exceeded"), JudgeOverflow, "longer context"),
    (error(413, "too large"), JudgeOverflow, "longer context"),
    (error(401, "who are you"), JudgeDenied, "OPENCLAW_JUDGE_API_KEY"),
    (error(403, "not yours"), JudgeDenied, "OPENCLAW_JUDGE_API_KEY"),
    (error(429, "slow down"), JudgeError, "429: slow down"),
    (error(500, "oops"), JudgeError, "500: oops"),
    (lambda: Response("<html>bad gateway</html>", 502), JudgeError, "502: <html>"),
    (lambda: JSONResponse({"object": "error", "message": "full", "code": 503}, 503), JudgeError, "503: full"),
    (lambda: Response("hello"), JudgeError, "no JSON"),
    (lambda: JSONResponse(["hello"]), JudgeError, "no object"),
    (lambda: JSONResponse({"choices": []}), JudgeError, "no chat completion"),
]


@pytest.mark.parametrize(("answer", "kind", "message"), TROUBLE)
async def test_every_trouble_is_told_by_what_can_be_done_about_it(
    answer: Callable[[], Response], kind: type[JudgeError], message: str
) -> None:
    with pytest.raises(JudgeError, match=message) as raised:
        await ask(Endpoint([answer]))
    assert type(raised.value) is kind
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    ("value", "at_least", "at_most"),
    [("7", 7, 7), ("0.5", 0.5, 0.5), (lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True), 20, 31)],
)
async def test_retry_after_is_read_as_seconds_or_as_a_date(value: Any, at_least: float, at_most: float) -> None:
    header = value if isinstance(value, str) else value()
    with pytest.raises(JudgeError) as raised:
        await ask(Endpoint([error(429, "slow down", retry_after=header)]))
    assert raised.value.retry_after_s is not None
    assert at_least <= raised.value.retry_after_s <= at_most


async def test_only_content_is_a_vote_whatever_the_model_thought() -> None:
    endpoint = Endpoint([lambda: completion("\\boxed{1}", reasoning_content="no: \\boxed{-1}")])
    reply = await ask(endpoint)
    assert (reply.text, reply.truncated, reply.prompt_tokens, reply.completion_tokens) == ("\\boxed{1}", False, 50, 9)
    reply = await ask(Endpoint([lambda: completion(None, "length", reasoning_content="\\boxed{1}")]))
    assert (reply.text, reply.truncated) == ("", True)


async def test_a_request_holds_what_is_configured_and_a_null_takes_a_field_out() -> None:
    endpoint = Endpoint()
    await ask(endpoint, temperature=0.3, max_tokens=77)
    (sent,) = endpoint.bodies
    assert (sent["model"], sent["temperature"], sent["max_tokens"], sent["stream"]) == ("judge-1", 0.3, 77, False)
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
    await ask(endpoint, body={"max_tokens": None, "temperature": None, "max_completion_tokens": 99})
    changed = endpoint.bodies[1]
    assert changed["max_completion_tokens"] == 99
    assert {"max_tokens", "temperature"}.isdisjoint(changed)


async def test_a_busy_endpoint_is_asked_again_when_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_core.judge.judge.FIRST_WAIT_S", 0.001)
    endpoint = Endpoint([error(429, "slow down", retry_after="0.2")] * 6)
    async with serving(endpoint.app) as url:
        judge = judge_at(url, retries=1)
        started = asyncio.get_running_loop().time()
        judgement = await judge.judge(TURN, COMPLAINT)
        waited = asyncio.get_running_loop().time() - started
        await judge.close()
    assert judgement.reward == -1
    assert len(endpoint.bodies) == 12
    assert waited >= 0.2


async def test_the_key_is_in_no_log_and_no_message() -> None:
    endpoint = Endpoint([error(401, "wrong key")] * 12)
    with structlog.testing.capture_logs() as logs:
        async with serving(endpoint.app) as url:
            judge = judge_at(url)
            with pytest.raises(JudgeUnavailable, match="wrong key") as raised:
                await judge.judge(TURN, COMPLAINT)
            await judge.close()
    assert raised.value.denied
    assert logs
    assert KEY not in json.dumps(logs, default=str) + str(raised.value) + repr(raised.value.ballot)


async def test_the_least_busy_server_is_asked_and_one_that_is_gone_only_when_there_is_no_other() -> None:
    one, other = Endpoint(), Endpoint()
    async with serving(one.app) as first, serving(other.app) as second:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            gone = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
        servers = Servers((gone, first, second), api_key=None, trust_env=False)
        with pytest.raises(JudgeError, match=f"{gone}.* cannot be reached"):
            await servers.post("/chat/completions", {}, 5)
        one.gate.clear()
        other.gate.clear()
        calls = [asyncio.create_task(servers.post("/chat/completions", {}, 10)) for _ in range(6)]
        async with asyncio.timeout(10):
            while (one.busy, other.busy) != (3, 3):
                await asyncio.sleep(0.01)
        one.gate.set()
        other.gate.set()
        await asyncio.gather(*calls)
        await servers.close()


async def test_a_vote_that_takes_too_long_is_given_up() -> None:
    endpoint = Endpoint()
    endpoint.gate.clear()
    async with serving(endpoint.app) as url:
        judge = judge_at(url, deadline_s=0.2)
        with pytest.raises(JudgeUnavailable, match=r"within 0\.2 s"):
            await judge.judge(TURN, COMPLAINT)
        await judge.close()
        endpoint.gate.set()
