"""Sessions of clients that send no session id: found by history, and every reaction reaches the turn that it is about."""

from __future__ import annotations

from collections import Counter

import pytest

from openclaw_core.config import load_config
from openclaw_core.config.load import parse_assignment
from openclaw_core.gateway.counts import Found
from openclaw_core.gateway.sessions import INFERRED
from openclaw_core.types import DropReason, NextState
from tests.gateway_parts import assistant, user
from tests.session_parts import Book, call, tool

ASKED = [user("One?")]
ANSWER = assistant("1")
TWO = [*ASKED, ANSWER, user("Two?")]


def test_a_request_that_goes_on_from_a_known_history_belongs_to_its_session() -> None:
    book = Book()
    first = book.answer(ASKED, "1", None)
    second = book.answer([{"role": "system", "content": "10:01"}, *TWO], "2", None)
    assert book.sink.states == {first: NextState("user", "Two?")}
    assert book.session_of(first) == book.session_of(second)
    assert book.session_of(first).startswith(INFERRED)
    assert [turn.index for turn in book.sink.turns] == [0, 1]
    assert book.sessions.counts.requests == {Found.OPENED: 1, Found.HISTORY: 1}


def test_an_answer_that_calls_tools_is_found_again_by_its_calls() -> None:
    book = Book()
    first = book.answer(ASKED, "", None, tool_calls=(call("add", '{"a": 1}'),))
    sent_back = {"role": "assistant", "content": None, "tool_calls": [call("add", '{"a":1}') | {"id": "x"}]}
    book.answer([*ASKED, sent_back, tool("5")], "5", None)
    assert book.sink.states == {first: NextState("tool", "5")}


def test_a_user_finds_only_sessions_of_that_user() -> None:
    book = Book()
    turns = {name: book.answer(ASKED, "1", None, user=name) for name in ("ann", "bob", None)}
    for name in ("bob", None, "ann"):
        book.answer([*ASKED, ANSWER, user(f"I am {name}.")], "2", None, user=name)
        assert book.sink.states[turns[name]] == NextState("user", f"I am {name}.")
    assert book.answer(TWO, "3", None, user="eve") not in book.sink.states
    assert len(book.sessions) == 4


def test_two_sessions_with_one_history_both_get_a_reaction() -> None:
    book = Book()
    turns = {book.answer(ASKED, "1", None) for _ in range(3)}
    for _ in range(3):
        book.answer(TWO, "2", None)
    assert {turn: state for turn, state in book.sink.states.items() if turn in turns} == dict.fromkeys(
        turns, NextState("user", "Two?")
    )
    assert len(book.sink.events) == len(book.sink.turns) + 3
    assert len(book.sessions) == 3


def test_a_session_id_always_wins_and_is_in_no_index() -> None:
    book = Book()
    named = book.answer(ASKED, "1", "s")
    assert len(book.sessions._index) == 0
    book.answer(TWO, "2", None)
    assert named not in book.sink.states
    other = book.answer(ASKED, "1", None)
    book.answer(TWO, "2", "t")
    assert other not in book.sink.states


def test_a_client_may_go_on_by_the_id_that_it_was_told() -> None:
    book = Book()
    first = book.answer(ASKED, "1", None, user="ann")
    second = book.answer(TWO, "2", book.session_of(first))
    assert book.sink.states == {first: NextState("user", "Two?")}
    assert book.session_of(second) == book.session_of(first)
    assert len(book.sessions._index) == 0


def test_repeating_a_request_that_holds_an_answer_is_one_turn() -> None:
    book = Book()
    book.answer(ASKED, "1", None)
    first, second = book.answer(TWO, "2", None), book.answer(TWO, "zwei", None)
    assert book.sink.states[first] == DropReason.REGENERATED
    assert [turn.index for turn in book.sink.turns] == [0, 1, 1]
    book.answer([*TWO, assistant("zwei"), user("Three?")], "3", None)
    assert book.sink.states[second] == NextState("user", "Three?")
    assert len(book.sessions) == 1


def test_repeating_an_opening_is_one_turn_in_the_end() -> None:
    book = Book()
    first, second = book.answer(ASKED, "1", None), book.answer(ASKED, "uno", None)
    book.answer([*ASKED, assistant("uno"), user("Two?")], "2", None)
    assert book.sink.states == {second: NextState("user", "Two?")}
    book.clock.now = 100.0
    book.sessions.sweep()
    assert book.sink.states[first] == DropReason.REGENERATED


def test_two_clients_that_open_with_the_same_words_both_go_on() -> None:
    book = Book()
    one, other = book.answer(ASKED, "1", None), book.answer(ASKED, "uno", None)
    for answer in ("uno", "1"):
        book.answer([*ASKED, assistant(answer), user(f"Why {answer}?")], "2", None)
    assert book.sink.states == {one: NextState("user", "Why 1?"), other: NextState("user", "Why uno?")}
    book.clock.now = 100.0
    book.sessions.sweep()
    assert [book.sink.states[turn.turn_id] for turn in book.sink.turns[2:]] == [DropReason.SESSION_IDLE] * 2


def test_a_repeat_while_the_first_is_being_answered_joins_its_session() -> None:
    book = Book()
    opening = book.answer(ASKED, "1", None)
    with book.request(TWO, None) as slow, book.request(TWO, None) as fast:
        first, second = book.capture(fast, TWO, "2"), book.capture(slow, TWO, "zwei")
    assert book.sink.states == {opening: NextState("user", "Two?"), first: DropReason.REGENERATED}
    assert book.session_of(opening) == book.session_of(second)


def test_asking_something_else_in_place_of_the_last_question_is_an_edited_history() -> None:
    book = Book()
    opening = book.answer(ASKED, "1", None)
    left = book.answer(TWO, "2", None)
    book.answer([*ASKED, ANSWER, user("Zwei?")], "3", None)
    assert book.sink.states == {opening: NextState("user", "Two?"), left: DropReason.HISTORY_DIVERGED}
    assert len(book.sessions) == 1


def test_an_edit_after_a_repeat_is_one_too() -> None:
    book = Book()
    book.answer(ASKED, "1", None)
    book.answer(TWO, "2", None)
    left = book.answer(TWO, "zwei", None)
    book.answer([*ASKED, ANSWER, user("Zwei?")], "3", None)
    assert book.sink.states[left] == DropReason.HISTORY_DIVERGED
    assert len(book.sessions) == 1


def test_a_request_that_failed_is_found_again() -> None:
    book = Book()
    opening = book.answer(ASKED, "1", None)
    with pytest.raises(ConnectionError), book.request(TWO, None):
        raise ConnectionError
    again = book.answer(TWO, "2", None)
    assert book.sink.states == {opening: NextState("user", "Two?")}
    assert book.session_of(again) == book.session_of(opening)


def test_an_edited_or_compacted_history_opens_a_session() -> None:
    book = Book()
    turn = book.answer(ASKED, "1", None)
    for history in ([*ASKED, assistant("one"), user("Two?")], [user("They asked for one."), user("Two?")]):
        assert book.session_of(book.answer(history, "2", None)) != book.session_of(turn)
    book.clock.now = 100.0
    book.sessions.sweep()
    assert book.sink.states[turn] == DropReason.SESSION_IDLE


def test_inferred_sessions_are_found_again_after_a_restart() -> None:
    before = Book()
    before.answer(ASKED, "1", None, user="ann")
    before.answer(TWO, "2", None, user="ann")
    after = Book()
    after.sessions.restore([turn for turn in before.sink.turns if turn.turn_id not in before.sink.states])
    after.answer(TWO, "zwei", None, user="ann")
    new = after.answer([*TWO, assistant("zwei"), user("Three?")], "3", None, user="ann")
    assert after.sink.states == {"t1": DropReason.REGENERATED, "t0": NextState("user", "Three?")}
    assert after.session_of(new) == before.session_of("t1")
    assert [turn.index for turn in after.sink.turns] == [1, 2]


def test_with_inference_off_a_request_without_an_id_has_no_session() -> None:
    book = Book(inference=False)
    book.answer(ASKED, "1")
    assert book.sessions.find(TWO).session_id is None
    assert book.sessions.counts.requests == {Found.HEADER: 1, Found.NONE: 1}


def test_every_request_is_counted_by_how_its_session_was_found() -> None:
    sessions = Book().sessions
    found = [
        sessions.find(ASKED, header="a", metadata="b"),
        sessions.find(ASKED, header="", metadata="b"),
        sessions.find(ASKED, header="", metadata=""),
        sessions.find(ASKED, metadata="b", side=True),
        sessions.find(ASKED, side=True),
    ]
    assert [origin.session_id for origin in found[:2]] == ["a", "b"]
    assert [origin.session_id for origin in found[3:]] == ["b", None]
    assert [origin.found for origin in found] == [Found.HEADER, Found.METADATA, Found.OPENED, Found.SIDE, Found.SIDE]
    assert sessions.counts.requests == Counter(origin.found for origin in found)
    assert len(sessions) == 0


@pytest.mark.parametrize("written", ["on", "off", "'on'", "'off'"])
def test_inference_is_set_as_people_write_it(written: str) -> None:
    name, value = parse_assignment(f"gateway.session_inference={written}")
    assert load_config("local-cpu", {name: value}).gateway.session_inference == written.strip("'")
