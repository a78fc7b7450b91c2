"""The client against a server: the contract server of every recorded version, or a real one (OPENCLAW_SGLANG_URL)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch
from structlog.testing import capture_logs

from openclaw_core.engines.protocol import EngineAborted, EngineError, RequestRefused
from openclaw_core.engines.sglang.client import SGLangEngine
from openclaw_core.engines.sglang.http import Http
from openclaw_core.engines.sglang.publish_types import State
from openclaw_core.engines.sglang.wire import generate_body
from openclaw_core.types import FinishReason
from tests.sglang_contract.sending import SentWeights
from tests.sglang_contract.world import PROMPT, Answer, World, request, whole


async def test_greedy_ids_and_logprobs_are_those_of_transformers(world: World, engine: SGLangEngine) -> None:
    answer = await whole(engine, request())
    assert answer.ids == world.greedy(PROMPT, 12)[: len(answer.ids)]
    assert world.agrees(PROMPT, answer.ids, answer.logprobs, 1.0)
    assert answer.versions == (await engine.version(),) * len(answer.ids)


async def test_sampled_logprobs_are_at_the_requests_temperature(world: World, engine: SGLangEngine) -> None:
    answer = await whole(engine, request(temperature=0.7, max_new_tokens=24))
    assert world.agrees(PROMPT, answer.ids, answer.logprobs, 0.7)
    assert not world.agrees(PROMPT, answer.ids, answer.logprobs, 1.0)


async def test_pieces_hold_new_tokens_only_and_together_are_the_answer_without_a_stream(
    world: World, engine: SGLangEngine
) -> None:
    asked = request(max_new_tokens=16)
    streamed = await whole(engine, asked)
    http = Http(world.url, api_key=world.api_key)
    reply = await http.call("POST", "/generate", 60, body={**generate_body(asked, "r" * 32), "stream": False})
    await http.close()
    assert reply.fault is None
    assert list(streamed.ids) == reply.body["output_ids"]
    expected = [entry[0] for entry in reply.body["meta_info"]["output_token_logprobs"]]
    torch.testing.assert_close(torch.tensor(streamed.logprobs), torch.tensor(expected), atol=world.tolerance, rtol=0)


async def test_alternatives_come_best_first_at_every_position(world: World, engine: SGLangEngine) -> None:
    pieces = [tokens async for tokens in engine.generate(request(temperature=0.7, max_new_tokens=5, top_logprobs=4))]
    ids = [token for piece in pieces for token in piece.token_ids]
    rows = [row for piece in pieces for row in piece.top_logprobs]
    assert len(rows) == len(ids)
    for row, reference in zip(rows, world.logprobs(PROMPT, ids, 0.7), strict=True):
        values = [value for _, value in row]
        assert values == sorted(values, reverse=True)
        torch.testing.assert_close(torch.tensor(values), reference.topk(4).values, atol=world.tolerance, rtol=0)


async def test_an_answer_ends_with_its_stop_token_or_at_its_limit(world: World, engine: SGLangEngine) -> None:
    greedy = world.greedy(PROMPT, 8)
    stop = greedy[4]
    ended = await whole(engine, request(stop=(stop,), max_new_tokens=20))
    assert ended.ids == greedy[: greedy.index(stop) + 1]
    assert ended.finish_reason is FinishReason.STOP
    cut = await whole(engine, request(max_new_tokens=3))
    assert (cut.ids, cut.finish_reason) == (greedy[:3], FinishReason.LENGTH)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
async def test_given_tokens_are_scored_from_the_first_on(world: World, engine: SGLangEngine, temperature: float) -> None:
    response = (7, 200, 33, 410, 2, 18)
    scored = await engine.prefill_logprobs(PROMPT, response, temperature)
    assert len(scored) == len(response)
    assert world.agrees(PROMPT, response, scored, temperature or 1.0)


async def test_scores_are_the_logprobs_of_sampling(world: World, engine: SGLangEngine) -> None:
    answer = await whole(engine, request(temperature=0.7, max_new_tokens=40))
    scored = await engine.prefill_logprobs(PROMPT, answer.ids, 0.7)
    torch.testing.assert_close(torch.tensor(scored), torch.tensor(answer.logprobs), atol=world.tolerance, rtol=0)


async def test_a_request_that_does_not_fit_is_refused(world: World, engine: SGLangEngine) -> None:
    http = Http(world.url, api_key=world.api_key)
    limit = (await http.call("GET", "/server_info", 30)).body["max_req_input_len"]
    await http.close()
    for asked in (request((5,) * (limit + 10)), request(max_new_tokens=limit + 100)):
        with pytest.raises(RequestRefused):
            await whole(engine, asked)


async def test_a_pause_keeps_what_came_and_the_answer_goes_on_after_it(world: World, engine: SGLangEngine) -> None:
    asked, before = request(max_new_tokens=150), Answer()
    expected = await whole(engine, asked)
    pausing: asyncio.Task[None] | None = None
    with pytest.raises(EngineAborted):
        async for tokens in engine.generate(asked):
            before.add(tokens)
            if pausing is None and len(before.ids) >= 5:
                pausing = asyncio.create_task(engine.pause())
    assert pausing is not None
    await pausing
    assert 5 <= len(before.ids) < len(expected.ids)
    left = replace(asked.sampling, max_new_tokens=150 - len(before.ids))
    on = replace(asked, input_ids=PROMPT + before.ids, sampling=left, continued=len(before.ids))
    after = asyncio.create_task(whole(engine, on))
    await asyncio.sleep(0.2)
    assert not after.done(), "a request that comes during a pause waits"
    await engine.resume()
    assert before.ids + (await after).ids == expected.ids


async def test_two_publishes_change_the_weights_and_the_version(world: World, engine: SGLangEngine) -> None:
    answers = {(await whole(engine, request())).ids}
    for version in (41, 42):
        weights = world.changed(version)
        assert len(weights.buckets) > 2
        with capture_logs() as log:
            await world.publish(engine, weights, version)
        (published,) = [entry for entry in log if entry["event"] == "weights_published"]
        assert {"pause", "flush", "verify"} <= published["seconds"].keys()
        assert (engine.state, await engine.version()) == (State.SERVING, version)
        answer = await whole(engine, request())
        assert answer.ids == world.greedy(PROMPT, 12)[: len(answer.ids)]
        assert set(answer.versions) == {version}
        answers.add(answer.ids)
    assert len(answers) == 3, "three sets of weights give three answers"


async def test_the_broadcast_group_is_joined_once(world: World, engine: SGLangEngine) -> None:
    opened: list[tuple[str, int]] = []

    class Counting(SentWeights):
        async def open_group(self, name: str, world_size: int, backend: str) -> tuple[str, int]:
            opened.append(await super().open_group(name, world_size, backend))
            return opened[-1]

    for version in (51, 52):
        await world.publish(engine, Counting(world.sender, world.changed(version).tensors), version)
    assert len(set(opened)) == 1


class Misnamed(SentWeights):
    """Announces another checksum than that of its tensors."""

    announced = "0" * 64

    @property
    def checksum(self) -> str:
        return self.announced


async def test_the_servers_checksum_changes_with_the_weights_and_only_with_them(world: World, engine: SGLangEngine) -> None:
    http = Http(world.url, api_key=world.api_key)
    known = (await http.call("POST", "/weights_checker", 60, body={"action": "checksum"})).fault is None
    await http.close()
    weights, others = world.changed(55), world.changed(56)
    await world.publish(engine, weights, 55)
    await world.publish(engine, weights, 56)
    # The same tensors under another name: to the client, a server that did not load the new ones. Then the reverse.
    for wrong, announced in ((Misnamed(world.sender, weights.tensors), "1" * 64), (Misnamed(world.sender, others.tensors), "")):
        wrong.announced = announced or weights.checksum
        await engine.pause()
        if known:
            with pytest.raises(EngineError, match=r"'verify' failed in state 'session closed'.*checksum"):
                await engine.load_weights(wrong, 57, wrong.checksum)
            assert engine.state is State.FAILED
        else:
            await engine.load_weights(wrong, 57, wrong.checksum)
        await world.publish(engine, others, 58)


async def test_a_server_that_was_restarted_is_found_and_joined_anew(world: World, engine: SGLangEngine) -> None:
    await world.publish(engine, world.changed(57), 57)
    http = Http(world.url, api_key=world.api_key)
    body = {"new_version": "0", "abort_all_requests": False}
    assert (await http.call("POST", "/update_weight_version", 60, body=body)).fault is None
    await http.close()
    with pytest.raises(EngineError, match="it was restarted"):
        await engine.version()
    names: list[str] = []

    class Named(SentWeights):
        async def open_group(self, name: str, world_size: int, backend: str) -> tuple[str, int]:
            names.append(name)
            return await super().open_group(name, world_size, backend)

    for version in (58, 59):
        await world.publish(engine, Named(world.sender, world.changed(version).tensors), version)
    assert len(set(names)) == 1
    assert names[0].endswith("-1"), "not the group of before"
    assert await engine.version() == 59


class FailingSender(SentWeights):
    """Its second bucket is never sent."""

    async def send(self, name: str, bucket: int) -> None:
        if bucket == 1:
            raise EngineError("the trainer is gone")
        await super().send(name, bucket)


class WrongName(SentWeights):
    """The server has no parameter of the last name."""

    @property
    def buckets(self):
        *others, last = super().buckets
        return (*others, replace(last, names=(*last.names[:-1], "model.nothing.weight")))

    async def send(self, name: str, bucket: int) -> None:
        await SentWeights(self.sender, self.tensors).send(name, bucket)


@pytest.mark.parametrize("broken", [FailingSender, WrongName])
async def test_a_publish_that_fails_half_way_leads_back_only_by_a_complete_one(
    world: World, engine: SGLangEngine, broken: type[SentWeights]
) -> None:
    before = await engine.version()
    weights = broken(world.sender, world.changed(60).tensors)
    await engine.pause()
    with pytest.raises(EngineError, match=r"'send bucket \d+/\d+' failed in state 'sending'"):
        await engine.load_weights(weights, 60, weights.checksum)
    assert engine.state is State.FAILED
    http = Http(world.url, api_key=world.api_key)
    assert (await http.call("GET", "/model_info", 60)).body["weight_version"] == str(before)
    await http.close()
    with pytest.raises(EngineError, match="may be a mixture"):
        await engine.resume()
    with pytest.raises(EngineError, match="serves no version"):
        await engine.version()

    whole_set = world.changed(61)
    await world.publish(engine, whole_set, before + 100)
    answer = await whole(engine, request())
    assert answer.ids == world.greedy(PROMPT, 12)[: len(answer.ids)]
    assert set(answer.versions) == {before + 100}


async def test_nothing_resumes_a_server_that_has_half_of_its_weights(world: World, engine: SGLangEngine) -> None:
    refused: list[str] = []

    class Impatient(SentWeights):
        async def send(self, name: str, bucket: int) -> None:
            if bucket == 2:
                for asked in (engine.resume, engine.version):
                    with pytest.raises(EngineError, match="sending") as raised:
                        await asked()
                    refused.append(str(raised.value))
            await super().send(name, bucket)

    await world.publish(engine, Impatient(world.sender, world.changed(65).tensors), 65)
    assert len(refused) == 2
    assert await engine.version() == 65


async def test_weights_are_not_loaded_into_a_server_that_serves(world: World, engine: SGLangEngine) -> None:
    weights = world.changed(70)
    with pytest.raises(EngineError, match="pause it before"):
        await engine.load_weights(weights, 70, weights.checksum)
    await engine.pause()
    with pytest.raises(EngineError, match="announced with checksum"):
        await engine.load_weights(weights, 70, "0" * 64)
    await engine.resume()
    assert engine.state is State.SERVING
