"""Which answers of a step are shown, and how much of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_core.inspection.reader import LedgerReader
from openclaw_core.ledger import Ledger
from openclaw_core.report.samples import HINTS, TEXT, VOTES, StepSamples, step_samples
from openclaw_core.types import FinishReason, Judgement, NextState, Question, Vote
from tests.unit.test_ledger import make_turn


class Batch:
    """Judged turns that become step 1."""

    def __init__(self, path: Path) -> None:
        self.path, self.ledger, self.turns = path, Ledger(path), list[str]()

    def add(self, turn_id: str, reward: int, hints: tuple[str, ...] = (), votes: int = 1, **turn: object) -> None:
        self.ledger.add_turn(make_turn(turn_id, **turn))
        self.ledger.set_next_state(turn_id, NextState("user", f"said of {turn_id}"))
        said = tuple(Vote(Question.REWARD, reward, None, f"\\boxed{{{reward}}}") for _ in range(votes))
        self.ledger.add_judgement(Judgement(turn_id, reward, hints, said))
        self.turns.append(turn_id)

    def samples(self) -> StepSamples:
        self.ledger.open_step(1, self.turns)
        with LedgerReader(self.path) as reader:
            found = step_samples(reader, 1)
        assert found is not None
        return found


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path / "ledger.sqlite")


def test_a_good_one_and_a_bad_one_that_says_what_was_wrong(batch: Batch) -> None:
    batch.add("bad-mute", -1)
    batch.add("bad", -1, hints=("Be brief.",))
    batch.add("good-hinted", 1, hints=("Even better.",))
    batch.add("good", 1)
    found = batch.samples()
    assert found["good"] is not None and found["bad"] is not None
    assert (found["good"]["turn_id"], found["bad"]["turn_id"]) == ("good", "bad")
    assert found["bad"]["hints"] == ["Be brief."]
    assert found["bad"]["next_state"] == "said of bad"
    assert found["bad"]["votes"] == [{"question": "reward", "value": -1, "raw": "\\boxed{-1}"}]


def test_an_answer_that_ended_by_itself_is_preferred(batch: Batch) -> None:
    batch.add("cut", 1, finish_reason=FinishReason.LENGTH)
    batch.add("whole", 1)
    good = batch.samples()["good"]
    assert good is not None and good["turn_id"] == "whole" and not good["truncated"]


def test_a_step_without_a_bad_answer_has_none(batch: Batch) -> None:
    batch.add("good", 1)
    assert batch.samples()["bad"] is None


def test_however_long_the_texts_the_sample_is_bounded(batch: Batch) -> None:
    long = "word " * 100_000
    hints = tuple(f"{i} {long}" for i in range(50))
    batch.add("bad", -1, hints=hints, votes=64, answer=long, messages=({"role": "user", "content": long},))
    bad = batch.samples()["bad"]
    assert bad is not None
    assert len(bad["answer"]) == len(bad["asked"]) == TEXT
    assert (len(bad["hints"]), len(bad["votes"])) == (HINTS, VOTES)
    assert len(str(bad)) < 20_000


def test_parts_and_tool_calls_are_shown_in_words(batch: Batch) -> None:
    content = [{"type": "text", "text": "Read it."}, {"type": "image_url", "image_url": {"url": "data:"}}]
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    batch.add("good", 1, messages=({"role": "user", "content": content},), answer="", tool_calls=(call,))
    good = batch.samples()["good"]
    assert good is not None
    assert good["asked"] == "Read it.\n(image_url)"
    assert good["answer"] == 'calls read {"path": "a"}'


def test_a_step_that_is_not_there_has_no_samples(batch: Batch) -> None:
    with LedgerReader(batch.path) as reader:
        assert step_samples(reader, 9) is None
