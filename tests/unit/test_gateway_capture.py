"""Which turn a new request reacts to, and that every captured turn hears about it exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_core.gateway.capture import reaction
from openclaw_core.gateway.sessions import SessionBook
from openclaw_core.types import FinishReason, NextState, Sampling, Turn
from tests.gateway_parts import RecordingSink, assistant, user

ASKED = [user("One?")]
ANSWER = assistant("1")
SYSTEM = {"role": "system", "content": "It is 10:00."}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "c"}


@pytest.mark.parametrize(
    ("history", "state"),
    [
        ([*ASKED, ANSWER, user("Two?")], NextState("user", "Two?")),
        ([*ASKED, ANSWER, tool("5")], NextState("tool", "5")),
        ([*ASKED, ANSWER, tool("5"), tool("6")], NextState("tool", "5\n\n6")),
        ([*ASKED, ANSWER, tool("5"), user("Thanks")], NextState("user", "Thanks")),
        ([*ASKED, ANSWER, user("Wrong."), user("Again!")], NextState("user", "Wrong.\n\nAgain!")),
        ([*ASKED, ANSWER, user("Two?"), assistant("2"), user("Three?")], NextState("user", "Two?")),
        ([user(" One? "), assistant("1\n"), user("Two?")], NextState("user", "Two?")),
        ([SYSTEM, *ASKED, ANSWER, user("Two?")], NextState("user", "Two?")),
        ([*ASKED, ANSWER], None),
        ([*ASKED, ANSWER, assistant("more")], None),
        ([*ASKED, assistant("edited"), user("Two?")], None),
        ([user("Edited?"), ANSWER, user("Two?")], None),
        ([user("A summary of the talk so far."), user("Two?")], None),
        ([*ASKED, user("Two?")], None),
        ([], None),
    ],
)
def test_a_reaction_is_what_follows_the_answer_in_an_unedited_history(history: list[Any], state: NextState | None) -> None:
    assert reaction(ASKED, "1", history) == state


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Book:
    """A SessionBook with its sink and clock, and turns made on the fly."""

    def __init__(self) -> None:
        self.sink, self.clock = RecordingSink(), Clock()
        self.sessions = SessionBook(self.sink, idle_s=100.0, clock=self.clock)

    def answer(self, messages: list[Any], answer: str, session: str = "s", *, last: bool = False) -> str:
        with self.sessions.request(session, messages) as opened:
            turn = make_turn(f"t{len(self.sink.events)}", session, opened.next_index, messages, answer)
            self.sessions.capture(opened, turn, last=last)
        return turn.turn_id


def make_turn(turn_id: str, session: str, index: int, messages: list[Any], answer: str) -> Turn:
    return Turn(
        turn_id=turn_id,
        session_id=session,
        index=index,
        messages=tuple(messages),
        answer=answer,
        prompt_ids=(1,),
        response_ids=(2,),
        rollout_logprobs=(-0.5,),
        sampling=Sampling(1.0, 8),
        weight_version=0,
        finish_reason=FinishReason.STOP,
        hint_offset=None,
        created_at=0.0,
        generate_s=0.0,
    )


def test_the_next_request_delivers_the_reaction_before_it_is_answered() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    with book.sessions.request("s", [*ASKED, ANSWER, user("Two?")]) as session:
        assert book.sink.states == {first: NextState("user", "Two?")}
        assert session.next_index == 1


def test_a_reaction_is_delivered_once_even_if_the_request_that_brought_it_fails() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    for _ in range(2):
        with book.sessions.request("s", [*ASKED, ANSWER, user("Two?")]):
            pass
    assert book.sink.events[1:] == [(first, NextState("user", "Two?"))]


def test_the_same_request_again_replaces_the_turn() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    second = book.answer(ASKED, "uno")
    assert [turn.index for turn in book.sink.turns] == [0, 0]
    assert book.sink.events[1] == (first, None)
    book.sessions.close("s", user("Good."))
    assert book.sink.states == {first: None, second: NextState("user", "Good.")}


def test_an_answer_that_overtakes_another_of_its_session_leaves_that_one_without_reaction() -> None:
    book = Book()
    with book.sessions.request("s", ASKED) as slow:
        fast = book.answer(ASKED, "1")
        book.sessions.capture(slow, make_turn("slow", "s", 1, ASKED, "uno"), last=False)
    assert book.sink.states == {fast: None}


def test_a_diverged_history_is_no_reaction() -> None:
    book = Book()
    first = book.answer(ASKED, "1")
    book.answer([user("Something else")], "2")
    assert book.sink.states == {first: None}


@pytest.mark.parametrize(("message", "state"), [(user("Thanks!"), NextState("user", "Thanks!")), (None, None)])
def test_closing_delivers_the_last_word(message: Any, state: NextState | None) -> None:
    book = Book()
    turn = book.answer(ASKED, "1")
    assert book.sessions.close("s", message) == turn
    assert book.sink.states == {turn: state}
    assert book.sessions.close("s", message) is None
    assert len(book.sessions) == 0


def test_the_last_turn_of_a_session_is_settled_at_once() -> None:
    book = Book()
    turn = book.answer(ASKED, "1", last=True)
    assert book.sink.states == {turn: None}
    assert len(book.sessions) == 0


def test_a_turn_that_is_answered_after_its_session_was_closed_is_settled_at_once() -> None:
    book = Book()
    with book.sessions.request("s", ASKED) as session:
        book.sessions.close("s", None)
        book.sessions.capture(session, make_turn("late", "s", 0, ASKED, "1"), last=False)
    assert book.sink.states == {"late": None}
    assert len(book.sessions) == 0


def test_idle_sessions_end_but_not_while_a_request_is_in_flight() -> None:
    book = Book()
    idle = book.answer(ASKED, "1", "idle")
    busy = book.answer(ASKED, "1", "busy")
    with book.sessions.request("busy", [*ASKED, ANSWER, user("Two?")]):
        book.clock.now = 99.0
        assert book.sessions.sweep() == 0
        book.clock.now = 100.0
        assert book.sessions.sweep() == 1
    assert book.sink.states == {idle: None, busy: NextState("user", "Two?")}
    book.clock.now = 150.0
    assert book.sessions.sweep() == 0
    assert len(book.sessions) == 1


def test_sessions_go_on_after_a_restart() -> None:
    book = Book()
    book.sessions.restore([make_turn("old", "s", 3, ASKED, "1")])
    new = book.answer([*ASKED, ANSWER, user("Two?")], "2")
    assert book.sink.states == {"old": NextState("user", "Two?")}
    assert [(turn.turn_id, turn.index) for turn in book.sink.turns] == [(new, 4)]
