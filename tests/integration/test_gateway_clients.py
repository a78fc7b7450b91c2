"""Clients that are slow, go away or share the gateway, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from openclaw_core.gateway.rendering import ChatRenderer
from tests.gateway_parts import API_KEY, MODEL, tiny_config, user
from tests.gateway_server import Served, serve
from tests.gateway_world import ScriptedEngine
from tests.models import tiny_llama

DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    return ChatRenderer.from_pretrained(tiny_llama(tmp_path_factory.mktemp("model")))


@pytest.fixture
async def served(renderer: ChatRenderer) -> AsyncIterator[Served]:
    engine = ScriptedEngine(renderer, lambda _: "Twelve apples in three boxes.")
    engine.gate.set()
    async with serve(renderer, engine, tiny_config(gateway__client_timeout_s=0.3)) as served:
        yield served


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


class Raw:
    """One connection, byte by byte."""

    def __init__(self, served: Served) -> None:
        self._port = int(served.url.split(":")[2].split("/")[0])

    async def __aenter__(self) -> Raw:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1024)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.writer.close()

    async def send(self, body: dict[str, Any], *, session: str, part: float = 1.0) -> None:
        """A chat request, or the first ``part`` of its body."""
        data = json.dumps(body).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {API_KEY}\r\nX-Session-Id: {session}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.writer.write(head.encode() + data[: int(part * len(data))])
        await self.writer.drain()


def question(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [user("How many apples?")], **more}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_while_its_answer_is_made_leaves_no_turn(served: Served, stream: bool) -> None:
    served.engine.gate.clear()
    async with Raw(served) as client:
        await client.send(question(stream=stream), session="s")
        await until(lambda: served.engine.busy)
    await until(lambda: not served.engine.busy)  # given up in the engine too
    served.engine.gate.set()
    await until(lambda: not served.room.in_flight)
    assert served.sink.events == []
    async with served.client() as other:  # and the session goes on as if nothing had been asked
        await other.chat.completions.create(**question(), extra_headers={"X-Session-Id": "s"})
    assert [turn.index for turn in served.sink.turns] == [0]


async def test_a_client_that_goes_away_while_it_waits_leaves_the_waiting_room(served: Served) -> None:
    served.room.pause()
    async with Raw(served) as client:
        await client.send(question(), session="s")
        await until(lambda: served.room.queue)
    await until(lambda: not served.room.queue)
    served.room.resume()
    assert served.sink.events == []


async def test_a_body_that_does_not_arrive_is_a_408(served: Served) -> None:
    async with Raw(served) as client:
        await client.send(question(), session="s", part=0.5)
        async with asyncio.timeout(DEADLINE_S):
            status = await client.reader.readline()
            rest = await client.reader.read(1000)
    assert b" 408 " in status
    assert b"request_timeout" in rest


async def test_a_client_that_reads_nothing_does_not_hold_its_place(served: Served, renderer: ChatRenderer) -> None:
    """An answer of many megabytes, so that no buffer on the way takes it all."""
    served.engine.script = lambda _: "word " * 100
    original, big = renderer.decode, "x" * 5_000_000
    renderer.decode = lambda ids: original(ids).replace("w", big)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        async with Raw(served) as client:
            await client.send(question(stream=True), session="s")
            await until(lambda: served.room.in_flight)
            await until(lambda: not served.room.in_flight)
    finally:
        renderer.decode = original  # pyright: ignore[reportAttributeAccessIssue]
    assert served.sink.turns == []


async def test_each_named_key_opens_the_gateway_and_no_other(renderer: ChatRenderer) -> None:
    engine = ScriptedEngine(renderer, lambda _: "Twelve.")
    engine.gate.set()
    async with serve(renderer, engine, tiny_config(), keys={"ann": "sk-ann", "bob": "sk-bob"}) as served:
        for key in ("sk-ann", "sk-bob"):
            async with served.client(api_key=key) as client:
                assert (await client.chat.completions.create(**question())).choices[0].message.content == "Twelve."
        for key in ("sk-an", "sk-annn", API_KEY):
            async with served.client(api_key=key) as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.chat.completions.create(**question())


async def test_tokens_are_sent_as_they_come(served: Served) -> None:
    """The first words are there while the engine is still held at the next token."""
    hold = asyncio.Event()
    generate = served.engine.generate

    async def slowly(request: Any) -> Any:
        count = 0
        async for tokens in generate(request):
            yield tokens
            count += 1
            if count == 3:
                await hold.wait()

    served.engine.generate = slowly
    async with served.client() as client:
        stream = await client.chat.completions.create(**question(stream=True), extra_headers={"X-Session-Id": "s"})
        seen = ""
        async for chunk in stream:
            seen += chunk.choices[0].delta.content or ""
            if seen and not hold.is_set():
                assert served.sink.turns == []
                hold.set()
    assert seen == "Twelve apples in three boxes."
    assert [turn.answer for turn in served.sink.turns] == [seen]
