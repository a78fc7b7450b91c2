"""A whole task as a run has it: feeder, openclaw CLI, gateway, ledger, and an engine with a model.

The model is random, so what it says is noise; what is held here is that every turn is captured once, as it was sampled.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openclaw_core.feeder import run_feeder
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.ledger import Ledger, TurnStatus
from openclaw_core.types import FinishReason, NextState
from tests.cli.openclaw_parts import CliWorld, RecordingLocalEngine, config, tool_model
from tests.gateway_world import API_KEY, CONTROL_TOKEN

pytestmark = pytest.mark.cli

PERSONAS = ("student", "ta", "teacher")
TURNS = 2


async def test_student_ta_and_teacher_are_captured_turn_by_turn(tmp_path: Path) -> None:
    settings = config(
        feeder__sessions_in_flight=1,
        feeder__max_turns=TURNS,
        feeder__cli__state=tmp_path / "state",
        rollout__max_response_tokens=24,
    )
    model = tool_model(tmp_path / "model")
    engine = RecordingLocalEngine(model, dtype="fp32", threads=2)
    engine.sampled = []
    engine.renderer = renderer = ChatRenderer.from_pretrained(model)
    room = WaitingRoom(hold_max_s=30, hold_max_requests=64)
    world = CliWorld(settings, engine, room, ledger=Ledger(tmp_path / "ledger.sqlite"))  # type: ignore[arg-type]
    stop = asyncio.Event()
    async with world.serving():
        feeding = asyncio.create_task(run_feeder(settings, world.gateway_url, API_KEY, world.control_url, CONTROL_TOKEN, stop))
        await world.until(lambda: feeding.done() or len(world.of("settled")) == TURNS * len(PERSONAS), 500)
        stop.set()
        summary = await feeding
    engine.close()
    assert summary.failures == 0
    assert not list((tmp_path / "state").rglob("openclaw.json"))

    sessions = list(dict.fromkeys(session for session, _ in world.of("turn")))[: len(PERSONAS)]
    assert [session.partition("-")[0] for session in sessions] == list(PERSONAS)
    outcomes = [session for session, _ in world.of("outcome")]
    for session in sessions:
        turns = world.session(session)
        assert [turn.index for turn, _ in turns] == list(range(TURNS))
        assert outcomes.count(session) == TURNS
        (first, complaint), (second, farewell) = turns
        assert isinstance(complaint, NextState)
        assert isinstance(farewell, NextState)
        assert (complaint.role, farewell.role) == ("user", "user")
        assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "user"]
        assert second.messages[2]["content"].strip() == first.answer.strip()
        assert second.messages[3]["content"] == complaint.text

    captured = [turn for _, turn in world.of("turn")]
    assert len({turn.turn_id for turn in captured}) == len(captured) == len(engine.sampled) == len(world.posts)
    for turn, (prompt_ids, sampled), post in zip(captured, engine.sampled, world.posts, strict=True):
        assert post.tags == (turn.session_id, "main")
        assert turn.prompt_ids == prompt_ids == post.rendered(renderer)
        assert (turn.response_ids, len(turn.rollout_logprobs)) == (sampled, len(sampled))
        assert turn.finish_reason is FinishReason.LENGTH
        assert turn.answer == renderer.parse(sampled, prompt_ids).text
    stored = [world.ledger.judging(turn.turn_id) for session in sessions for turn, _ in world.session(session)]
    assert stored == [pair for session in sessions for pair in world.session(session)]
    assert world.ledger.count(TurnStatus.DROPPED) == 0
    world.ledger.close()
