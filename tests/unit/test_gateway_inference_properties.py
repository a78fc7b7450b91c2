"""Any number of clients without session ids, whatever they do: every reaction reaches the turn that it is about, once."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.types import DropReason, NextState, Turn
from tests.gateway_parts import assistant, user
from tests.session_parts import Book


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
            book.answer([*opening, assistant("1"), user("Two?")], "2", None)
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
