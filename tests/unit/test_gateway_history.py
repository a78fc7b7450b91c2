"""When two histories are the same conversation, and the index that finds one by the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.gateway.history import History, HistoryIndex, answer_message, extend, normal_json
from tests.gateway_parts import assistant, user
from tests.session_parts import call

ASKED = [user("One?")]
CALLS = [call("add", '{"a": 1, "b": [2, 3]}')]

texts = st.text(max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
calls = st.builds(call, st.sampled_from(["add", "sub"]), json_values.map(json.dumps))
messages = st.builds(
    lambda role, content, called: {"role": role, "content": content, **({"tool_calls": called} if called else {})},
    st.sampled_from(["user", "assistant", "tool"]),
    texts,
    st.lists(calls, max_size=2),
)


def whole(*history: dict[str, Any]) -> bytes:
    return History(list(history)).whole


@pytest.mark.parametrize(
    "sent_back",
    [
        {"role": "assistant", "content": "1", "tool_calls": CALLS},
        {"role": "assistant", "content": "\n 1 ", "tool_calls": CALLS},
        {"role": "assistant", "content": "1", "reasoning_content": "Hm.", "tool_calls": CALLS},
        {"role": "assistant", "content": "1", "tool_calls": [CALLS[0] | {"id": "another"}]},
        {"role": "assistant", "content": "1", "tool_calls": [call("add", '{"b":[2,3.0],"a":1}')]},
    ],
    ids=["as it came", "edges", "reasoning", "call id", "serialised again"],
)
def test_what_clients_do_to_an_answer_leaves_it_the_same(sent_back: dict[str, Any]) -> None:
    assert whole(*ASKED, sent_back) == extend(whole(*ASKED), answer_message("1", CALLS))


@pytest.mark.parametrize(
    "sent_back",
    [
        {"role": "assistant", "content": "1"},
        {"role": "assistant", "content": "1.", "tool_calls": CALLS},
        {"role": "user", "content": "1", "tool_calls": CALLS},
        {"role": "assistant", "content": "1", "tool_calls": CALLS * 2},
        {"role": "assistant", "content": "1", "tool_calls": [call("sub", '{"a": 1, "b": [2, 3]}')]},
        {"role": "assistant", "content": "1", "tool_calls": [call("add", '{"a": 1, "b": [3, 2]}')]},
        {"role": "assistant", "content": "1", "tool_calls": [call("add", '{"a": "1", "b": [2, 3]}')]},
    ],
)
def test_another_answer_is_another(sent_back: dict[str, Any]) -> None:
    assert whole(*ASKED, sent_back) != extend(whole(*ASKED), answer_message("1", CALLS))


@pytest.mark.parametrize("content", ["", None, "  "])
def test_the_empty_text_beside_a_tool_call_has_many_spellings(content: str | None) -> None:
    sent_back = {"role": "assistant", "content": content, "tool_calls": CALLS}
    assert whole(*ASKED, sent_back) == extend(whole(*ASKED), answer_message("", CALLS))


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_do_not_count(role: str) -> None:
    clock = {"role": role, "content": "It is 10:00."}
    assert whole(clock, *ASKED, clock) == whole(*ASKED)
    assert len(History([clock, *ASKED])) == 1


def test_text_does_not_slide_from_one_message_into_the_next() -> None:
    assert whole(user("ab"), user("c")) != whole(user("a"), user("bc")) != whole(user("abc"))
    assert whole(user("a"), assistant("b")) != whole(user("a"), user("b"))
    assert whole(assistant("1add{}")) != whole(assistant("1") | {"tool_calls": [call("add", "{}")]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": 2}', ' {"b":2,\n"a":1.0}'),
        ('{"a": -0.0}', '{"a": 0}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
        ("{'a': 1} ", "{'a': 1}"),
        ("", ""),
    ],
)
def test_the_same_arguments_have_one_form(one: str, other: str) -> None:
    assert normal_json(one) == normal_json(other)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5_000, '{"a": 1e999}', "nope", "NaN", '"\\ud800"'])
def test_no_arguments_are_too_odd_to_be_compared(text: str) -> None:
    assert whole({"role": "assistant", "content": "\ud800", "tool_calls": [call("f", text)]}) != whole()


@given(json_values)
def test_arguments_are_the_same_after_they_were_serialised_again(value: Any) -> None:
    again = json.dumps(json.loads(json.dumps(value)), indent=3, ensure_ascii=False)
    assert normal_json(again) == normal_json(json.dumps(value))


@given(st.lists(messages, max_size=6), st.integers(0, 6))
def test_a_chain_holds_the_hash_of_every_prefix(history: list[dict[str, Any]], length: int) -> None:
    chain = History(history)
    prefix = History(history[:length])
    assert chain.holds(prefix.whole, len(prefix))
    assert not prefix.holds(chain.whole, len(chain)) or len(history) <= length


@given(st.lists(messages, max_size=3), st.lists(messages, max_size=3))
def test_two_histories_have_one_hash_only_if_they_say_the_same(one: list[Any], other: list[Any]) -> None:
    def said(history: list[Any]) -> list[Any]:
        return [
            (m["role"], m["content"].strip(), [(c["function"]["name"], _sorted(c)) for c in m.get("tool_calls", ())])
            for m in history
        ]

    assert (whole(*one) == whole(*other)) == (said(one) == said(other))


def _sorted(called: dict[str, Any]) -> str:
    return normal_json(called["function"]["arguments"])


def test_of_several_that_wait_at_one_place_the_newest_is_found_and_all_can_leave() -> None:
    index: HistoryIndex[str] = HistoryIndex()
    for item in ("a", "b", "c"):
        index.wait(b"x", None, item)
    assert index.waiting(b"x", None) == "c"
    for item, next_found in (("b", "c"), ("c", "a"), ("a", None)):
        index.leave(b"x", None, item)
        assert index.waiting(b"x", None) == next_found
    assert len(index) == 0


def test_a_place_belongs_to_a_user() -> None:
    index: HistoryIndex[str] = HistoryIndex()
    index.wait(b"x", "ann", "a")
    index.know(b"x", "bob", "b")
    assert [index.waiting(b"x", name) for name in ("ann", "bob", None)] == ["a", None, None]
    assert [index.known(b"x", name) for name in ("ann", "bob", None)] == [None, "b", None]


def test_a_place_that_a_newer_one_has_taken_is_not_forgotten_by_the_older() -> None:
    index: HistoryIndex[str] = HistoryIndex()
    index.know(b"x", None, "old")
    index.know(b"x", None, "new")
    index.forget(b"x", None, "old")
    assert index.known(b"x", None) == "new"
    index.forget(b"x", None, "new")
    assert index.known(b"x", None) is None
