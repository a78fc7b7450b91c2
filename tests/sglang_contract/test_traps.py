"""What goes wrong with SGLang, in both versions: refusals in all their shapes, full queues, clients that go away."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from openclaw_core.engines.protocol import (
    EngineAborted,
    EngineError,
    EngineFull,
    Grammar,
    RequestRefused,
)
from openclaw_core.engines.sglang.errors import parse_body
from openclaw_core.engines.sglang.http import Http
from openclaw_core.types import FinishReason
from tests.sglang_contract.conftest import Inside, Serve
from tests.sglang_contract.contract import Contract
from tests.sglang_contract.scheduler import Job
from tests.sglang_contract.world import PROMPT, Answer, request, whole

LONG = request(max_new_tokens=400)
GENERATE = {"input_ids": list(PROMPT), "sampling_params": {"max_new_tokens": 4}}


async def _post(inside: Inside, path: str, body: Any, **options: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=inside.url, trust_env=False) as client:
        return await client.post(path, json=body, **options)


@pytest.mark.parametrize(
    ("path", "body", "shape", "status"),
    [
        ("/generate", {**GENERATE, "sampling_params": {"temperature": -1.0}}, "native", 400),
        ("/generate", {**GENERATE, "input_ids": [5] * 600}, "native", 400),
        ("/update_weights_from_distributed", {"names": ["a"]}, "openai", 400),
        ("/pause_generation", {"mode": "gently"}, "openai", 400),
        ("/destroy_weights_update_group", {"group_name": "none"}, "control", 400),
        ("/no_such_route", {}, "detail", 404),
        ("/flush_cache", None, "text", 400),
    ],
)
async def test_refusals_are_parsed_whatever_their_shape(serve: Serve, path: str, body: Any, shape: str, status: int) -> None:
    inside = await serve(step_s=0.01)
    engine = await inside.connect()
    running = asyncio.create_task(whole(engine, LONG))
    await _until(lambda: inside.scheduler.running)
    reply = await _post(inside, path, body)
    fault = parse_body(reply.status_code, reply.content)
    assert (fault.status, fault.shape) == (status, shape)
    assert fault.message
    running.cancel()
    await engine.close()


async def test_a_wrong_key_is_refused_in_the_shape_of_a_plain_string(serve: Serve) -> None:
    inside = await serve(api_key="right")
    with pytest.raises(EngineError, match=r"Unauthorized \(status 401\)"):
        await inside.connect(api_key="wrong")
    engine = await inside.connect(api_key="right")
    assert (await whole(engine, request())).ids
    await engine.close()


async def test_unknown_sampling_fields_break_the_older_version_and_are_refused_by_the_newer(serve: Serve) -> None:
    inside = await serve()
    http = Http(inside.url)
    with pytest.raises(EngineError) as raised:
        async with http.events("/generate", {**GENERATE, "sampling_params": {"seed": 1}, "stream": True}, 30) as pieces:
            assert not [piece async for piece in pieces]
    await http.close()
    gated = Contract.load(inside.version).gated
    assert isinstance(raised.value, RequestRefused) is gated
    if gated:
        for wrong in ({"max_new_tokens": "8"}, {"temperature": True}):
            reply = await _post(inside, "/generate", {**GENERATE, "sampling_params": wrong})
            fault = parse_body(reply.status_code, reply.content)
            assert (fault.status, fault.shape) == (400, "gate")


async def test_an_error_inside_a_stream_refuses_the_request(serve: Serve) -> None:
    inside = await serve()
    engine = await inside.connect()
    with pytest.raises(RequestRefused, match="longer than the model's context"):
        await whole(engine, request((5,) * 600))
    with pytest.raises(RequestRefused, match="Input length"):
        await whole(engine, request((5,) * 507, max_new_tokens=1))
    with pytest.raises(RequestRefused, match="maximum context length"):
        await whole(engine, request(max_new_tokens=510))
    await engine.close()


async def test_a_request_that_fills_the_context_exactly_is_refused_by_the_older_version(serve: Serve) -> None:
    inside = await serve(context_length=64)
    engine = await inside.connect()
    asked = request(max_new_tokens=64 - len(PROMPT))
    if Contract.load(inside.version).gated:
        answer = await whole(engine, asked)
        assert len(answer.ids) <= 62 - len(PROMPT)
    else:
        with pytest.raises(RequestRefused):
            await whole(engine, asked)
    await engine.close()


async def test_a_full_queue_is_an_engine_that_is_full(serve: Serve) -> None:
    inside = await serve(max_running=1, max_queued=1, step_s=0.005)
    engine = await inside.connect()
    running = asyncio.create_task(whole(engine, LONG))
    await _until(lambda: inside.scheduler.running)
    waiting = asyncio.create_task(whole(engine, request()))
    await _until(lambda: inside.scheduler.waiting)
    with pytest.raises(EngineFull, match="queue is full"):
        await whole(engine, request())
    with pytest.raises(EngineFull, match="queue is full"):
        await engine.prefill_logprobs(PROMPT, (1, 2), 1.0)
    running.cancel()
    assert (await waiting).ids, "the one that was in the queue is answered"
    await engine.close()


async def test_a_request_that_is_given_up_is_aborted_by_its_own_id(serve: Serve) -> None:
    inside = await serve(step_s=0.005)
    engine = await inside.connect()
    stream = engine.generate(LONG)
    await anext(stream)
    (job,) = inside.scheduler.running
    await stream.aclose()
    aborts = inside.server.frontend.aborts
    await _until(lambda: job.rid in aborts and inside.scheduler.idle)
    assert len(job.rid) == 32
    assert len(job.output_ids) < 400

    task = asyncio.create_task(whole(engine, LONG))
    await _until(lambda: inside.scheduler.running)
    (cancelled,) = inside.scheduler.running
    task.cancel()
    await _until(lambda: cancelled.rid in aborts and inside.scheduler.idle)
    assert len(cancelled.rid) == len(job.rid), "no id is the prefix of another"
    await engine.close()


async def test_an_answer_that_ends_is_not_aborted(serve: Serve) -> None:
    inside = await serve()
    engine = await inside.connect()
    await whole(engine, request())
    await engine.close()
    assert not inside.server.frontend.aborts


@pytest.mark.parametrize("incremental", [False, True])
async def test_pieces_are_new_tokens_whatever_the_server_streams(serve: Serve, incremental: bool) -> None:
    inside = await serve(incremental=incremental, step_s=0.002)
    engine = await inside.connect()
    asked, answer, tops = request(temperature=0.9, max_new_tokens=20, top_logprobs=2), Answer(), []
    jobs: list[Job] = []
    async for tokens in engine.generate(asked):
        jobs = jobs or list(inside.scheduler.running)
        answer.add(tokens)
        tops += tokens.top_logprobs
    (job,) = jobs
    assert answer.pieces > 3, "several pieces came"
    assert (list(answer.ids), list(answer.logprobs)) == (job.output_ids, job.output_logprobs)
    assert tops == [tuple((token, value) for value, token, _ in row) for row in job.output_top]
    assert answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    await engine.close()


@pytest.mark.parametrize("incremental", [False, True])
async def test_an_abort_while_waiting_or_running_is_to_be_asked_again(serve: Serve, incremental: bool) -> None:
    inside = await serve(incremental=incremental, max_running=1, step_s=0.005)
    engine = await inside.connect()
    running, waiting = asyncio.create_task(whole(engine, LONG)), asyncio.create_task(whole(engine, request()))
    await _until(lambda: inside.scheduler.running and inside.scheduler.waiting)
    await engine.pause()
    for task in (running, waiting):
        with pytest.raises(EngineAborted):
            await task
    await engine.resume()
    assert (await whole(engine, request())).ids
    await engine.close()


async def test_health_waits_behind_a_pause(serve: Serve) -> None:
    inside = await serve()
    engine = await inside.connect()
    await engine.pause()
    async with httpx.AsyncClient(base_url=inside.url, trust_env=False) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/health", timeout=0.5)
        await engine.resume()
        assert (await client.get("/health", timeout=10)).status_code == 200
        assert (await client.get("/weight_version")).status_code == 404
    await engine.close()


async def test_a_scheduler_that_is_stuck_is_found_once_it_is_quiet(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = await serve()
    engine = await inside.connect(health_s=0.5)
    monkeypatch.setattr("openclaw_core.engines.sglang.client._QUIET_S", 0.0)
    assert await engine.version() == 3
    async with inside.scheduler.exclusive:
        with pytest.raises(EngineError, match=r"/health did not answer within 0\.5 s"):
            await engine.version()
        monkeypatch.setattr("openclaw_core.engines.sglang.client._QUIET_S", 60.0)
        assert await engine.version() == 3, "a server that was heard of is not asked"
    monkeypatch.setattr("openclaw_core.engines.sglang.client._QUIET_S", 0.0)
    await engine.pause()
    assert await engine.version() == 3, "a paused server cannot be asked"
    await engine.resume()
    await engine.close()


async def test_an_update_without_a_session_is_refused_before_the_broadcast(serve: Serve) -> None:
    inside = await serve()
    if not Contract.load(inside.version).sessions:
        async with httpx.AsyncClient(base_url=inside.url, trust_env=False) as client:
            assert (await client.post("/begin_weight_update", json={})).status_code == 404
        return
    body = {"names": ["a"], "dtypes": ["float32"], "shapes": [[1]], "group_name": "nobody is in it"}
    reply = await _post(inside, "/update_weights_from_distributed", body)
    fault = parse_body(reply.status_code, reply.content)
    assert (fault.status, fault.shape) == (400, "control")
    assert "session" in fault.message


async def test_a_grammar_is_refused_by_a_server_without_a_grammar_backend(serve: Serve) -> None:
    inside = await serve()
    engine = await inside.connect()
    assert not engine.grammars
    with pytest.raises(RequestRefused, match="no grammar backend"):
        await whole(engine, request(grammar=Grammar("regex", "a+")))
    await engine.close()
    assert (await (await serve(grammar_backend="xgrammar")).connect()).grammars


async def test_what_cannot_be_scored_is_an_error_that_says_what_can(serve: Serve) -> None:
    engine = await (await serve()).connect()
    with pytest.raises(EngineError, match="over the limit of 1024: score a shorter answer, or at temperature 1"):
        await engine.prefill_logprobs(PROMPT, (5,) * 1025, 0.7)
    with pytest.raises(EngineError, match="both need one at least"):
        await engine.prefill_logprobs((), (5,), 1.0)
    with pytest.raises(RequestRefused):
        await engine.prefill_logprobs(PROMPT, (5,) * 600, 1.0)
    await engine.close()


async def test_servers_that_are_not_supported_are_refused(serve: Serve) -> None:
    with pytest.raises(EngineError, match="dp_size=2"):
        await (await serve(dp_size=2)).connect()
    with pytest.raises(EngineError, match=r"0\.5\.10 is the oldest supported version"):
        await (await serve(version="0.5.9.post1")).connect()
    with pytest.raises(EngineError, match="no SGLang server"):
        await (await serve(version=None)).connect()
    built = await (await serve(version="0.0.0.dev1+g0123abc")).connect()
    assert built.capabilities.version == "0.0.0.dev1+g0123abc"
    await built.close()


async def test_a_version_that_is_no_number_is_an_error(serve: Serve) -> None:
    inside = await serve(weight_version="default")
    engine = await inside.connect()
    with pytest.raises(EngineError, match="'default'"):
        await engine.version()
    with pytest.raises(EngineError, match="--weight-version"):
        await whole(engine, request())
    await engine.close()


async def test_a_server_that_is_not_there_or_falls_silent_is_an_engine_error(serve: Serve) -> None:
    inside = await serve(step_s=5.0)
    engine = await inside.connect(silence_s=0.3)
    with pytest.raises(EngineError, match=r"sent nothing for 0\.3 s"):
        await whole(engine, LONG)
    await engine.close()
    http = Http("http://127.0.0.1:9")
    with pytest.raises(EngineError, match="cannot be reached"):
        await http.call("GET", "/server_info", 5)
    await http.close()


async def _until(condition: Any, deadline_s: float = 20) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.005)
