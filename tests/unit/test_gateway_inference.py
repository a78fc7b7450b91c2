"""Sessions of clients that send no session id: found by history, and every reaction reaches the turn that it is about."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.config import load_config
from openclaw_core.config.load import parse_assignment
from openclaw_core.gateway.counts import ENOUGH, Counts, Found, advice
from openclaw_core.gateway.sessions import INFERRED
from openclaw_core.types import DropReason, NextState, Turn
from tests.gateway_parts import assistant, user
from tests.session_parts import Book, call, tool

ASKED = [user("One?")]
ANSWER = assistant("1")
TWO = [*ASKED, ANSWER, user("Two?")]


# Examples


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


# Advice


def counts(inference: bool, drops: dict[DropReason, int] | None = None, next_states: int = 0, **requests: int) -> Counts:
    return Counts(inference, Counter({Found(name): n for name, n in requests.items()}), next_states, Counter(drops or {}))


@pytest.mark.parametrize(
    "well",
    [
        counts(True),
        counts(True, opened=ENOUGH - 1),
        counts(True, opened=500, history=1, next_states=1),
        counts(False, header=40, next_states=30),
        counts(False, side=500),
        counts(True, {DropReason.HISTORY_DIVERGED: 100}, 1, header=200),
    ],
)
def test_there_is_no_advice_where_all_is_well(well: Counts) -> None:
    assert advice(well) is None


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (counts(False, header=2, metadata=1, none=37, side=5), "37 of 40 requests carried no session id"),
        (counts(False, header=2, metadata=1, none=37), "set gateway.session_inference=on"),
        (
            counts(True, opened=ENOUGH, header=3),
            f"{ENOUGH} conversations without a session id were opened and none was continued",
        ),
        (counts(True, {DropReason.HISTORY_DIVERGED: 9}, header=10), "9 were dropped as history_diverged"),
    ],
)
def test_advice_says_what_is_wrong_and_what_to_set(bad: Counts, words: str) -> None:
    assert words in str(advice(bad))


# Properties


@dataclass
class Client:
    """An OpenAI client without session ids. ``turn`` gave the last answer of its history, None after an edit."""

    book: Book
    expected: dict[str, NextState]
    user: str | None
    unique: bool
    history: list[dict[str, Any]] = field(default_factory=list)
    turn: str | None = None

    def say(self, text: str, *, fails: bool = False) -> None:
        """The next message of the conversation, answered or (``fails``) lost on the way."""
        if self.history and self.history[-1]["role"] == "user":  # the last request was lost: its message is sent again
            self.history.pop()
        self.history.append({"role": "user", "content": text})
        if self.turn is not None:
            self.expected.setdefault(self.turn, NextState("user", text))
        if not fails:
            self._ask()
        else:
            with self.book.request(self.history, None, self.user):
                pass

    def repeat(self) -> None:
        """The last request once more; the later answer stays in the history."""
        if len(self.history) > 1 and self.history[-1]["role"] == "assistant":
            self.history.pop()
            self._ask()

    def edit(self, where: int, number: int) -> None:
        """Change a message, so that the history no longer holds the last answer or what led to it."""
        if self.history:
            place = where % len(self.history)
            self.history[place] = {**self.history[place], "content": f"edited {number}"}
            self.turn = None

    def reformat(self, where: int) -> None:
        """What clients do to messages without meaning anything by it."""
        if self.history:
            place = where % len(self.history)
            message = self.history[place]
            content = f"  {message['content'].strip()}\n" if where % 2 else message["content"].strip()
            self.history[place] = {"role": message["role"], "content": content or None}

    def _ask(self) -> None:
        answer = f"answer {len(self.book.sink.turns)}" if self.unique else "the answer"
        sent = [{"role": "system", "content": f"It is {len(self.book.sink.events)} o'clock."}, *self.history]
        self.turn = self.book.answer(sent, answer, None, user=self.user)
        self.history.append({"role": "assistant", "content": answer, "reasoning_content": "Hm."})


WORDS = st.sampled_from(["a", "b", "c"])
SAY = st.tuples(st.just("say"), WORDS)
ACTIONS = st.one_of(
    SAY,
    SAY,
    SAY,
    st.tuples(st.just("lose"), WORDS),
    st.tuples(st.just("repeat"), st.none()),
    st.tuples(st.just("edit"), st.integers(0, 9)),
    st.tuples(st.just("reformat"), st.integers(0, 9)),
    st.tuples(st.just("restart"), st.none()),
)
CLIENTS = 4
USERS = st.lists(st.sampled_from([None, "ann", "bob"]), min_size=CLIENTS, max_size=CLIENTS)


def settled_once(book: Book) -> None:
    """Every captured turn has had its next state, or a reason, exactly once."""
    told = Counter(event[0] for event in book.sink.events if isinstance(event, tuple))
    assert told == Counter(turn.turn_id for turn in book.sink.turns)


def next_states(book: Book) -> dict[str, NextState]:
    return {turn_id: state for turn_id, state in book.sink.states.items() if isinstance(state, NextState)}


@settings(max_examples=300, deadline=None)
@given(USERS, st.lists(st.tuples(st.integers(0, CLIENTS - 1), ACTIONS), max_size=40))
def test_every_turn_that_was_continued_gets_the_right_next_state(users: list[Any], script: list[Any]) -> None:
    """Answers differ, as sampled ones do; openings do not. Turns that an edit or a repeat left behind get none."""
    book, expected = Book(), {}
    clients = [Client(book, expected, name, unique=True) for name in users]
    for number, (who, (action, value)) in enumerate(script):
        client = clients[who]
        if action == "say":
            client.say(value)
        elif action == "lose":
            client.say(value, fails=True)
        elif action == "repeat":
            client.repeat()
        elif action == "edit":
            client.edit(value, number)
        elif action == "reformat":
            client.reformat(value)
        else:
            restart(book)
        assert next_states(book) == expected
        assert len(book.sessions._busy) == 0
    end(book)
    assert next_states(book) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, CLIENTS - 1), WORDS), max_size=40))
def test_clients_with_identical_histories_share_nothing_and_lose_nothing(script: list[tuple[int, str]]) -> None:
    """All answers are the same, so any of several turns with one history is right for a reaction, but none gets two."""
    book = Book()
    clients = [Client(book, {}, None, unique=False) for _ in range(CLIENTS)]
    continued: Counter[tuple[tuple[str, ...], str]] = Counter()
    for who, word in script:
        client = clients[who]
        if client.history:
            continued[texts(client.history), word] += 1
        client.say(word)
    turns = {turn.turn_id: turn for turn in book.sink.turns}
    delivered = Counter(
        ((*texts(turns[turn_id].messages), turns[turn_id].answer), state.text) for turn_id, state in next_states(book).items()
    )
    assert delivered == continued
    end(book)
    assert sum(isinstance(state, NextState) for state in book.sink.states.values()) == continued.total()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, CLIENTS - 1), WORDS), max_size=30))
def test_eviction_keeps_the_bound_and_settles_what_it_ends(bound: int, script: list[tuple[int, str]]) -> None:
    book, expected = Book(max_sessions=bound), {}
    clients = [Client(book, expected, None, unique=True) for _ in range(CLIENTS)]
    for who, word in script:
        clients[who].say(word)
        assert len(book.sessions) <= bound
        assert len(book.sessions._index) <= 3 * bound
    end(book)
    assert next_states(book).items() <= expected.items()
    lost = expected.keys() - next_states(book).keys()
    assert {book.sink.states[turn_id] for turn_id in lost} <= {DropReason.SESSION_EVICTED, DropReason.REGENERATED}


def texts(messages: Any) -> tuple[str, ...]:
    return tuple(message["content"] for message in messages if message["role"] != "system")


def restart(book: Book) -> None:
    """A new gateway on the old ledger. What it forgets: sessions none of whose turns waits."""
    waiting: list[Turn] = [turn for turn in book.sink.turns if turn.turn_id not in book.sink.states]
    fresh = Book()
    book.sessions = fresh.sessions
    book.sessions._sink, book.sessions._clock = book.sink, book.clock
    book.sessions.restore(waiting)


def end(book: Book) -> None:
    book.clock.now += 1000.0
    book.sessions.sweep()
    settled_once(book)
    assert len(book.sessions) == len(book.sessions._index) == 0


# Memory


@pytest.mark.parametrize("identical", [False, True], ids=["all different", "one history"])
def test_a_session_costs_little_memory(identical: bool) -> None:
    """Long histories are not kept. Two thousand sessions, each on its second turn of 20,000 characters."""
    book, text = Book(), "x" * 20_000
    book.sessions._sink = Forgetful()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2_000):
            opening = [user(text if identical else f"{number} {text}")]
            book.answer(opening, "1", None)
            book.answer([*opening, ANSWER, user("Two?")], "2", None)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(book.sessions) == 2_000
    assert (after - before) / 2_000 < 1_600


class Forgetful:
    """A sink that keeps nothing."""

    def turn(self, turn: Turn) -> None:
        pass

    def next_state(self, turn_id: str, state: NextState | DropReason) -> None:
        pass
