"""The gateway on the wire: errors, headers, streams, and what is captured of a conversation."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest

from openclaw_core.engines.local import LocalEngine
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.types import DropReason, FinishReason, NextState
from tests.gateway_parts import MODEL, Gateway, assemble, assistant, tiny_config, user

HI = [user("Tom has 3 boxes.")]
SIDE = {"X-Turn-Type": "side"}


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_an_answer_has_openais_shape_and_says_how_it_was_made(gateway: Gateway) -> None:
    response = await gateway.chat(HI, session="s")
    (turn,) = gateway.sink.turns
    body = response.json()
    assert response.status_code == 200
    assert {"id": f"chatcmpl-{turn.turn_id}", "object": "chat.completion", "model": MODEL}.items() <= body.items()
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": turn.answer, "refusal": None},
            "logprobs": None,
            "finish_reason": turn.finish_reason.value,
        }
    ]
    prompt, answer = len(turn.prompt_ids), len(turn.response_ids)
    assert body["usage"] == {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
    assert response.headers["x-openclaw-turn-id"] == turn.turn_id
    assert response.headers["x-openclaw-turn-type"] == "main"
    assert response.headers["x-openclaw-weight-version"] == "3"
    assert response.headers["x-openclaw-sampling"] == "pinned; temperature=0.7; max_new_tokens=12"


@pytest.mark.parametrize("include_usage", [False, True])
async def test_a_stream_is_the_same_answer_in_pieces(gateway: Gateway, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    fields: dict[str, Any] = {"seed": 5, "temperature": 1.0, "max_tokens": 24, "stop": None, "headers": SIDE}
    whole = (await gateway.chat(HI, **fields)).json()
    response = await gateway.chat(HI, stream=True, **fields, **options)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    usage = [event for event in events if not event["choices"]]
    deltas = [event["choices"][0] for event in events if event["choices"]]
    content = [choice["delta"].get("content", "") for choice in deltas]
    assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(content) == whole["choices"][0]["message"]["content"]
    assert len(content) > 3
    assert deltas[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in deltas if choice["finish_reason"]] == [whole["choices"][0]["finish_reason"]]
    assert [event["usage"] for event in usage] == ([whole["usage"]] if include_usage else [])
    assert all(("usage" in event) == include_usage for event in events)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_main_turn_is_captured_with_what_was_sampled(
    gateway: Gateway, renderer: ChatRenderer, engine: LocalEngine, stream: bool
) -> None:
    await gateway.chat(HI, session="s", stream=stream, temperature=0.1, top_p=0.5, max_tokens=7)
    (turn,) = gateway.sink.turns
    rendering = renderer.render(HI)
    assert (turn.session_id, turn.index, turn.messages) == ("s", 0, tuple(HI))
    assert (turn.prompt_ids, turn.hint_offset) == (rendering.prompt_ids, rendering.hint_offset)
    assert turn.answer == renderer.parse(turn.response_ids, turn.prompt_ids).text
    assert (turn.sampling.temperature, turn.sampling.max_new_tokens, turn.sampling.shaped) == (0.7, 7, False)
    assert turn.weight_version == 3
    again = await engine.prefill_logprobs(turn.prompt_ids, turn.response_ids, 0.7)
    assert turn.rollout_logprobs == pytest.approx(again, abs=0.2)  # bf16: prefill and decode round differently


async def test_reactions_flow_to_the_sink_in_order(gateway: Gateway) -> None:
    history = list(HI)
    for word in ("Shorter.", "Good."):
        answer = (await gateway.chat(history, session="s")).json()["choices"][0]["message"]
        history += [answer, user(word)]
    closed = await gateway.client.post("/v1/sessions/s/close", json={"message": history[-1]})
    first, second = gateway.sink.turns
    assert gateway.sink.events == [
        first,
        (first.turn_id, NextState("user", "Shorter.")),
        second,
        (second.turn_id, NextState("user", "Good.")),
    ]
    assert closed.json() == {"object": "session", "id": "s", "closed": True, "last_turn": second.turn_id}
    assert [turn.index for turn in gateway.sink.turns] == [0, 1]


async def test_a_reaction_is_delivered_while_its_own_request_still_waits(renderer: ChatRenderer, engine: LocalEngine) -> None:
    gateway = assemble(renderer, engine)
    answer = (await gateway.chat(HI, session="s")).json()["choices"][0]["message"]["content"]
    gateway.room.pause()
    waiting = asyncio.create_task(gateway.chat([*HI, assistant(answer), user("Go on.")], session="s"))
    while not gateway.room.queue:
        await asyncio.sleep(0.001)
    (turn,) = gateway.sink.turns
    assert gateway.sink.states == {turn.turn_id: NextState("user", "Go on.")}
    gateway.room.resume()
    assert (await waiting).status_code == 200


@pytest.mark.parametrize("done", ["1", "true", "YES", "on"])
async def test_session_done_settles_the_answered_turn(gateway: Gateway, done: str) -> None:
    await gateway.chat(HI, session="s", headers={"X-Session-Done": done})
    (turn,) = gateway.sink.turns
    assert gateway.sink.states == {turn.turn_id: DropReason.SESSION_CLOSED}


async def test_session_done_on_a_side_turn_ends_the_session(gateway: Gateway) -> None:
    await gateway.chat(HI, session="s")
    await gateway.chat(HI, session="s", headers={"X-Turn-Type": "side", "X-Session-Done": "1"})
    (turn,) = gateway.sink.turns
    assert gateway.sink.states == {turn.turn_id: DropReason.SESSION_CLOSED}


@pytest.mark.parametrize("session", ["agent:main:7", "a/b/close", "a b"])
async def test_any_session_id_can_be_closed(gateway: Gateway, session: str) -> None:
    await gateway.chat(HI, session=session)
    closed = await gateway.client.post(f"/v1/sessions/{quote(session, safe='')}/close")
    (turn,) = gateway.sink.turns
    assert closed.json() == {"object": "session", "id": session, "closed": True, "last_turn": turn.turn_id}


@pytest.mark.parametrize(
    ("headers", "body", "captured"),
    [
        ({"X-Session-Id": "s"}, {}, True),
        ({}, {"metadata": {"session_id": "s"}}, True),
        ({"X-Session-Id": "s", "X-Turn-Type": "Main"}, {}, True),
        ({"X-Session-Id": "s", "X-Turn-Type": "side"}, {}, False),
    ],
)
async def test_a_turn_is_main_when_it_names_a_session_and_is_not_called_side(
    gateway: Gateway, headers: dict[str, str], body: dict[str, Any], captured: bool
) -> None:
    response = await gateway.chat(HI, headers=headers, **body)
    assert response.headers["x-openclaw-turn-type"] == ("main" if captured else "side")
    assert ("x-openclaw-turn-id" in response.headers) == captured
    assert [turn.session_id for turn in gateway.sink.turns] == (["s"] if captured else [])


async def test_side_turns_keep_seed_and_temperature(gateway: Gateway) -> None:
    async def text(**fields: Any) -> str:
        return (await gateway.chat(HI, headers=SIDE, **fields)).json()["choices"][0]["message"]["content"]

    assert await text(temperature=0) == await text(temperature=0, seed=1)
    assert await text(temperature=1.5, seed=1) == await text(temperature=1.5, seed=1)
    assert await text(temperature=1.5, seed=1) != await text(temperature=1.5, seed=2)


async def test_a_stop_string_cuts_the_answer_and_the_ids_at_the_token_that_completes_it(
    gateway: Gateway, renderer: ChatRenderer
) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 30, "headers": SIDE}
    whole = (await gateway.chat(HI, **fields)).json()["choices"][0]["message"]["content"]
    stop = whole[8:10]
    response = (await gateway.chat(HI, **fields, stop=[stop, "never"])).json()
    assert response["choices"][0]["message"]["content"] == whole[: whole.index(stop)]
    assert response["choices"][0]["finish_reason"] == "stop"
    assert response["usage"]["completion_tokens"] < 30


async def test_main_turns_store_the_ids_up_to_the_stop_string(renderer: ChatRenderer, engine: LocalEngine) -> None:
    gateway = assemble(renderer, engine, tiny_config(rollout__sampling="honour"))
    whole = (await gateway.chat(HI, session="a", temperature=0)).json()["choices"][0]["message"]["content"]
    await gateway.chat(HI, session="b", temperature=0, stop=whole[4:6])
    full, cut = gateway.sink.turns
    assert cut.response_ids == full.response_ids[: len(cut.response_ids)]
    assert len(cut.rollout_logprobs) == len(cut.response_ids) < len(full.response_ids)
    assert whole[4:6] in renderer.parse(cut.response_ids, ()).text
    assert whole[4:6] not in renderer.parse(cut.response_ids[:-1], ()).text
    assert cut.finish_reason is FinishReason.STOP


async def test_a_history_that_does_not_fit_ends_its_session_and_its_reaction_counts(gateway: Gateway) -> None:
    answer = (await gateway.chat(HI, session="s")).json()["choices"][0]["message"]["content"]
    response = await gateway.chat([*HI, assistant(answer), user("Shorter! " * 100)], session="s")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    (turn,) = gateway.sink.turns
    assert gateway.sink.states == {turn.turn_id: NextState("user", ("Shorter! " * 100))}
    assert len(gateway.app.state.sessions) == 0
    page = (await gateway.client.get("/metrics")).text
    assert "openclaw_gateway_context_overflows_total 1.0" in page


async def test_any_openai_client_has_its_sessions_found_by_their_history(gateway: Gateway) -> None:
    history = list(HI)
    for word in ("Shorter.", "Good."):
        response = await gateway.chat(history)
        assert response.headers["x-openclaw-turn-type"] == "main"
        history += [response.json()["choices"][0]["message"], user(word)]
    first, second = gateway.sink.turns
    assert first.session_id == second.session_id == response.headers["x-openclaw-session-id"]
    assert (first.index, second.index) == (0, 1)
    assert gateway.sink.states == {first.turn_id: NextState("user", "Shorter.")}


async def test_without_inference_such_requests_are_side_turns_and_are_counted(
    renderer: ChatRenderer, engine: LocalEngine
) -> None:
    gateway = assemble(renderer, engine, tiny_config(gateway__session_inference="off"))
    response = await gateway.chat(HI, user="ann")
    assert response.headers["x-openclaw-turn-type"] == "side"
    assert gateway.sink.turns == []
    page = (await gateway.client.get("/metrics")).text
    assert 'openclaw_gateway_requests_by_session_total{found="none"} 1.0' in page


async def test_metrics_count_requests_tokens_and_answers_and_show_no_text(gateway: Gateway) -> None:
    await gateway.chat([user("a secret question")], session="a-secret-session")
    await gateway.chat([], session="s")
    (turn,) = gateway.sink.turns
    page = (await gateway.client.get("/metrics", headers={"Authorization": ""})).text
    assert 'openclaw_gateway_requests_total{path="/v1/chat/completions",status="200"} 1.0' in page
    assert 'openclaw_gateway_requests_total{path="/v1/chat/completions",status="400"} 1.0' in page
    tokens = 'openclaw_gateway_tokens_total{{kind="{}",turn_type="main"}} {}.0'
    assert tokens.format("prompt", len(turn.prompt_ids)) in page
    assert tokens.format("completion", len(turn.response_ids)) in page
    assert 'openclaw_gateway_first_token_seconds_count{turn_type="main"} 1.0' in page
    assert "secret" not in page


async def test_log_probs_name_the_sampled_tokens_and_their_alternatives(gateway: Gateway, renderer: ChatRenderer) -> None:
    response = await gateway.chat(HI, session="s", logprobs=True, top_logprobs=2)
    (turn,) = gateway.sink.turns
    entries = response.json()["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == list(turn.rollout_logprobs)
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode(errors="replace") == renderer.tokenizer.decode(
        turn.response_ids
    )
    for entry in entries:
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] >= max(entry["logprob"], entry["top_logprobs"][1]["logprob"])


async def test_a_side_turn_may_have_several_answers_and_a_main_turn_has_one(gateway: Gateway) -> None:
    fields: dict[str, Any] = {"n": 3, "temperature": 1.5, "seed": 4}
    response = (await gateway.chat(HI, headers=SIDE, **fields)).json()
    texts = [choice["message"]["content"] for choice in response["choices"]]
    assert [choice["index"] for choice in response["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert response["usage"]["completion_tokens"] > 3
    events = events_of((await gateway.chat(HI, headers=SIDE, stream=True, **fields)).text)
    streamed = ["", "", ""]
    for event in events:
        streamed[event["choices"][0]["index"]] += event["choices"][0]["delta"].get("content", "")
    assert streamed == texts
    refused = await gateway.chat(HI, session="s", n=2)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


async def test_health_needs_no_key_and_tells_pause_version_and_queue(gateway: Gateway) -> None:
    bare = {"Authorization": ""}
    assert (await gateway.client.get("/healthz", headers=bare)).json() == {"accepting": True, "version": 3, "queue": 0}
    gateway.room.pause()
    assert (await gateway.client.get("/healthz", headers=bare)).json() == {"accepting": False, "version": 3, "queue": 0}


async def test_models_lists_the_served_model_to_key_holders(gateway: Gateway) -> None:
    listing = (await gateway.client.get("/v1/models")).json()
    assert [model["id"] for model in listing["data"]] == [MODEL]
    assert (await gateway.client.get("/v1/models", headers={"Authorization": "Bearer no"})).status_code == 401


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 200),
        (b'{"message": null}', {}, 200),
        (b'{"message": {"role": "system", "content": "x"}}', {}, 400),
        (b"{", {}, 400),
        (b"", {"Authorization": "Bearer no"}, 401),
    ],
)
async def test_closing_an_unknown_session_is_fine_but_not_a_wrong_body_or_key(
    gateway: Gateway, body: bytes, headers: dict[str, str], status: int
) -> None:
    response = await gateway.client.post("/v1/sessions/unknown/close", content=body, headers=headers)
    assert response.status_code == status
    if status == 200:
        assert response.json()["last_turn"] is None
    assert gateway.sink.events == []


async def test_idle_sessions_are_swept_while_the_app_lives(renderer: ChatRenderer, engine: LocalEngine) -> None:
    gateway = assemble(renderer, engine, tiny_config(gateway__session_idle_s=0.02))
    async with gateway.app.router.lifespan_context(gateway.app):
        await gateway.chat(HI, session="s")
        for _ in range(200):
            if gateway.sink.states:
                break
            await asyncio.sleep(0.01)
    (turn,) = gateway.sink.turns
    assert gateway.sink.states == {turn.turn_id: DropReason.SESSION_IDLE}


async def test_turns_from_before_a_restart_still_get_their_reaction(renderer: ChatRenderer, engine: LocalEngine) -> None:
    before = assemble(renderer, engine)
    answer = (await before.chat(HI, session="s")).json()["choices"][0]["message"]["content"]
    (turn,) = before.sink.turns
    after = assemble(renderer, engine, pending=[turn])
    await after.chat([*HI, assistant(answer), user("Still there?")], session="s")
    assert after.sink.states == {turn.turn_id: NextState("user", "Still there?")}
    assert [turn.index for turn in after.sink.turns] == [1]
