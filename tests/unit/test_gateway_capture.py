"""What a history says about a turn, and that every captured turn of a session hears of it exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openclaw_core.gateway.capture import Captured, verdict
from openclaw_core.gateway.history import History
from openclaw_core.types import DropReason, NextState
from tests.gateway_parts import assistant, user
from tests.session_parts import Book, call, make_turn, tool

ASKED = [user("One?")]
ANSWER = assistant("1")
SYSTEM = {"role": "system", "content": "It is 10:00."}
DIVERGED, REGENERATED = DropReason.HISTORY_DIVERGED, DropReason.REGENERATED
SUPERSEDED, CLOSED = DropReason.SUPERSEDED, DropReason.SESSION_CLOSED


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ([*ASKED, ANSWER, user("Two?")], NextState("user", "Two?")),
        ([*ASKED, ANSWER, tool("5")], NextState("tool", "5")),
        ([*ASKED, ANSWER, tool("")], NextState("tool", "")),
        ([*ASKED, ANSWER, tool("5"), tool("6")], NextState("tool", "5\n\n6")),
        ([*ASKED, ANSWER, tool("5"), user("Thanks")], NextState("user", "Thanks")),
        ([*ASKED, ANSWER, tool("5"), user(" ")], NextState("tool", "5")),
        ([*ASKED, ANSWER, user("Wrong."), user("Again!")], NextState("user", "Wrong.\n\nAgain!")),
        ([*ASKED, ANSWER, user("Two?"), assistant("2"), user("Three?")], NextState("user", "Two?")),
        ([user(" One? "), assistant("1\n"), user("Two?")], NextState("user", "Two?")),
        ([SYSTEM, *ASKED, ANSWER, SYSTEM, user("Two?")], NextState("user", "Two?")),
        ([*ASKED, {**ANSWER, "reasoning_content": "Hm."}, user("Two?")], NextState("user", "Two?")),
        ([*ASKED, ANSWER], None),
        ([*ASKED, ANSWER, user(" ")], None),
        ([*ASKED, ANSWER, assistant("more")], None),
        (ASKED, REGENERATED),
        ([SYSTEM, user("One? ")], REGENERATED),
        ([*ASKED, assistant("edited"), user("Two?")], DIVERGED),
        ([*ASKED, {**ANSWER, "tool_calls": [call("f", "{}")]}, user("Two?")], DIVERGED),
        ([user("Edited?"), ANSWER, user("Two?")], DIVERGED),
        ([user("A summary of the talk so far."), user("Two?")], DIVERGED),
        ([*ASKED, user("Two?")], DIVERGED),
        ([], DIVERGED),
    ],
)
def test_a_history_tells_what_became_of_an_answer(history: list[Any], said: Any) -> None:
    captured = Captured.of(make_turn("t", "s", 0, ASKED, "1"), History(ASKED))
    assert verdict(captured, History(history)) == said


def test_an_answer_that_calls_tools_is_recognised_by_its_calls() -> None:
    turn = make_turn("t", "s", 0, ASKED, "", tool_calls=(call("add", '{"a": 1}'),))
    captured = Captured.of(turn, History(ASKED))
    for arguments, said in (('{"a":1.0}', NextState("tool", "5")), ('{"a":2}', DIVERGED)):
        sent_back = {"role": "assistant", "content": None, "tool_calls": [call("add", arguments)]}
        assert verdict(captured, History([*ASKED, sent_back, tool("5")])) == said


def test_the_next_request_delivers_the_reaction_before_it_is_answered() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    with book.request([*ASKED, ANSWER, user("Two?")]) as exchange:
        assert book.sink.states == {first: NextState("user", "Two?")}
        assert exchange.index == 1


def test_a_reaction_is_delivered_once_even_if_the_request_that_brought_it_fails() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    for _ in range(2):
        with book.request([*ASKED, ANSWER, user("Two?")]):
            pass
    assert book.sink.events[1:] == [(first, NextState("user", "Two?"))]


def test_the_same_request_again_replaces_the_turn() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    second = book.answer([SYSTEM, *ASKED], "uno")
    assert [turn.index for turn in book.sink.turns] == [0, 0]
    assert book.sink.states == {first: REGENERATED}
    book.sessions.close("s", user("Good."))
    assert book.sink.states == {first: REGENERATED, second: NextState("user", "Good.")}


def test_a_repeat_that_is_never_answered_leaves_the_turn_as_it_was() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    with pytest.raises(ConnectionError), book.request(ASKED):
        raise ConnectionError
    book.answer([*ASKED, ANSWER, user("Two?")], "2")
    assert book.sink.states == {first: NextState("user", "Two?")}
    assert [turn.index for turn in book.sink.turns] == [0, 1]


def test_a_repeat_while_the_first_is_being_answered_is_one_turn_in_the_end() -> None:
    book = Book()
    with book.request(ASKED) as slow:
        fast = book.answer(ASKED, "1")
        late = book.capture(slow, ASKED, "uno")
    assert [turn.index for turn in book.sink.turns] == [0, 0]
    book.answer([*ASKED, assistant("uno"), user("Two?")], "2")
    assert book.sink.states == {fast: REGENERATED, late: NextState("user", "Two?")}


def test_an_answer_that_another_one_of_its_session_overtakes_gets_no_reaction() -> None:
    book = Book()
    with book.request([user("Something else")]) as slow:
        fast = book.answer(ASKED, "1")
        book.capture(slow, [user("Something else")], "late")
    assert book.sink.states == {fast: SUPERSEDED}
    assert [turn.index for turn in book.sink.turns] == [0, 1]


def test_a_request_that_ends_with_the_answer_supersedes_it() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    with book.request([*ASKED, ANSWER]) as exchange:
        assert book.sink.states == {}
        book.capture(exchange, [*ASKED, ANSWER], "and 2")
    assert book.sink.states == {first: SUPERSEDED}


def test_a_diverged_history_is_no_reaction() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    book.answer([user("Something else")], "2")
    assert book.sink.states == {first: DIVERGED}
    assert book.sessions.counts.drops == {DIVERGED: 1}


@pytest.mark.parametrize(
    ("message", "state"),
    [(user("Thanks!"), NextState("user", "Thanks!")), (user(" "), CLOSED), (None, CLOSED)],
)
def test_closing_delivers_the_last_word(message: Any, state: Any) -> None:
    book = Book()
    turn = book.answer(ASKED, "1")
    assert book.sessions.close("s", message) == turn
    assert book.sink.states == {turn: state}
    assert book.sessions.close("s", message) is None
    assert len(book.sessions) == 0


def test_the_last_turn_of_a_session_is_settled_at_once_and_the_one_before_by_its_request() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    last = book.answer([*ASKED, ANSWER, user("Two?")], "2", last=True)
    assert book.sink.states == {first: NextState("user", "Two?"), last: CLOSED}
    assert len(book.sessions) == 0


@pytest.mark.parametrize("session", ["s", None])
def test_a_turn_that_is_answered_after_its_session_was_closed_is_settled_at_once(session: str | None) -> None:
    book = Book()
    with book.request(ASKED, session) as exchange:
        book.sessions.close(exchange.session_id)
        late = book.capture(exchange, ASKED, "1")
    assert book.sink.states == {late: CLOSED}
    assert len(book.sessions) == 0
    assert len(book.sessions._index) == 0


def test_a_session_that_is_opened_again_while_its_old_answer_is_in_the_making_is_a_new_one() -> None:
    book = Book()
    with book.request(ASKED) as old:
        book.sessions.close("s")
        new = book.answer(ASKED, "1")
        late = book.capture(old, ASKED, "uno")
    assert book.sink.states == {late: CLOSED}
    book.answer([*ASKED, ANSWER, user("Two?")], "2")
    assert book.sink.states == {late: CLOSED, new: NextState("user", "Two?")}


def test_idle_sessions_end_but_not_while_a_request_is_in_flight() -> None:
    book = Book()
    idle = book.answer(ASKED, "1", "idle")
    busy = book.answer(ASKED, "1", "busy")
    with book.request([*ASKED, ANSWER, user("Two?")], "busy"):
        book.clock.now = 99.0
        assert book.sessions.sweep() == 0
        book.clock.now = 100.0
        assert book.sessions.sweep() == 1
    assert book.sink.states == {idle: DropReason.SESSION_IDLE, busy: NextState("user", "Two?")}
    book.clock.now = 150.0
    assert book.sessions.sweep() == 0
    assert len(book.sessions) == 1


def test_a_session_that_has_captured_nothing_is_not_remembered() -> None:
    book = Book()
    for session in ("s", None):
        with book.request(ASKED, session):
            assert len(book.sessions) == 1
        assert len(book.sessions) == 0


def test_past_the_bound_the_session_that_was_used_least_recently_is_ended() -> None:
    book = Book(max_sessions=3)
    turns = {name: book.answer(ASKED, "1", name) for name in "abc"}
    with book.request([*ASKED, ANSWER], "b"):  # used, and in flight
        for name in "de":
            turns[name] = book.answer(ASKED, "1", name)
        assert book.sink.states == {turns["a"]: DropReason.SESSION_EVICTED, turns["c"]: DropReason.SESSION_EVICTED}
    book.answer(ASKED, "1", "f")
    assert list(book.sink.states) == [turns["a"], turns["c"], turns["d"]]
    assert len(book.sessions) == 3
    assert book.sessions.counts.drops == {DropReason.SESSION_EVICTED: 3}


def test_requests_in_flight_are_never_evicted() -> None:
    book = Book(max_sessions=1)
    with book.request(ASKED, "a") as one, book.request(ASKED, "b") as other:
        first, second = book.capture(one, ASKED, "1"), book.capture(other, ASKED, "1")
        assert book.sink.states == {}
    book.answer([*ASKED, ANSWER, user("Two?")], "2", "b")
    assert book.sink.states == {second: NextState("user", "Two?")}
    book.answer(ASKED, "1", "c")
    assert set(book.sink.states) == {first, second, "t2"}


def test_a_sink_that_fails_leaves_the_turn_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    follow_up = [*ASKED, ANSWER, user("Two?")]

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(book.sink, "next_state", full)
        with pytest.raises(OSError, match="space"), book.request(follow_up):
            pass
        book.clock.now = 100.0
        with pytest.raises(OSError, match="space"):
            book.sessions.sweep()
    book.answer(follow_up, "2")
    assert book.sink.states == {first: NextState("user", "Two?")}
    with monkeypatch.context() as broken:
        broken.setattr(book.sink, "turn", full)
        with pytest.raises(OSError, match="space"):
            book.answer([user("Other")], "3")
    assert book.sink.states == {first: NextState("user", "Two?")}


async def test_sweeping_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book()
    book.sessions._idle_s = 0.004  # sweeps every millisecond
    turns = {book.answer(ASKED, "1", str(number)) for number in range(20)}
    book.clock.now, failures = 1.0, [OSError("No space left on device")] * 3
    tell = book.sink.next_state

    def full_at_first(turn_id: str, state: Any) -> None:
        if failures:
            raise failures.pop()
        tell(turn_id, state)

    monkeypatch.setattr(book.sink, "next_state", full_at_first)
    sweeper = asyncio.create_task(book.sessions.sweep_forever())
    async with asyncio.timeout(30):
        while len(book.sessions):
            assert not sweeper.done()
            await asyncio.sleep(0.001)
    sweeper.cancel()
    assert book.sink.states == dict.fromkeys(turns, DropReason.SESSION_IDLE)


def test_sessions_go_on_after_a_restart() -> None:
    book = Book()
    book.sessions.restore([make_turn("old", "s", 3, ASKED, "1")])
    new = book.answer([*ASKED, ANSWER, user("Two?")], "2")
    assert book.sink.states == {"old": NextState("user", "Two?")}
    assert [(turn.turn_id, turn.index) for turn in book.sink.turns] == [(new, 4)]


def test_of_two_turns_of_one_session_that_wait_after_a_restart_the_newer_counts() -> None:
    book = Book()
    book.sessions.restore([make_turn("old", "s", 0, ASKED, "1"), make_turn("new", "s", 0, ASKED, "uno")])
    assert book.sink.states == {"old": REGENERATED}
    assert len(book.sessions) == 1
