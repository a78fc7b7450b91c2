"""Whose sampling parameters a turn gets."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_core.gateway.errors import ApiError
from openclaw_core.gateway.sampling import SamplingPolicy
from openclaw_core.gateway.schema import ChatRequest
from openclaw_core.types import Sampling, TurnType

PIN = SamplingPolicy("pin", temperature=0.7, repetition_penalty=1.1, max_response_tokens=64)
HONOUR = SamplingPolicy("honour", temperature=0.7, repetition_penalty=1.0, max_response_tokens=64)
ALL_SET: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "seed": 7,
}


def request(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields})


def choose(policy: SamplingPolicy, turn_type: TurnType, prompt_tokens: int = 100, **fields: Any) -> Sampling:
    return policy.choose(request(**fields), turn_type, prompt_tokens, context_length=1024)


def test_main_turns_are_pinned_whatever_the_client_says() -> None:
    assert choose(PIN, TurnType.MAIN, **ALL_SET) == Sampling(temperature=0.7, repetition_penalty=1.1, max_new_tokens=64)


@pytest.mark.parametrize("policy", [PIN, HONOUR])
def test_side_turns_keep_the_clients_values(policy: SamplingPolicy) -> None:
    assert choose(policy, TurnType.SIDE, **ALL_SET, max_tokens=300) == Sampling(**ALL_SET, max_new_tokens=300)


def test_honoured_main_turns_keep_the_clients_values_but_not_its_length() -> None:
    assert choose(HONOUR, TurnType.MAIN, **ALL_SET, max_tokens=300) == Sampling(**ALL_SET, max_new_tokens=64)


def test_a_side_turn_that_names_nothing_gets_the_presets_values() -> None:
    assert choose(PIN, TurnType.SIDE) == Sampling(temperature=0.7, repetition_penalty=1.1, max_new_tokens=64)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_main_turn_is_as_long_as_client_and_preset_both_allow(field: str) -> None:
    assert choose(PIN, TurnType.MAIN, **{field: 10}).max_new_tokens == 10
    assert choose(PIN, TurnType.MAIN, **{field: 100}).max_new_tokens == 64


def test_an_unnamed_length_is_what_is_left_of_the_context() -> None:
    assert choose(PIN, TurnType.MAIN, prompt_tokens=1000).max_new_tokens == 24


@pytest.mark.parametrize(
    ("turn_type", "prompt_tokens", "fields", "numbers"),
    [
        (TurnType.MAIN, 1024, {}, "you requested 1025 tokens (1024 in the messages, 1 in the completion)"),
        (TurnType.MAIN, 1000, {"max_tokens": 512}, "you requested 1064 tokens (1000 in the messages, 64 in the completion)"),
        (TurnType.SIDE, 1000, {"max_tokens": 25}, "you requested 1025 tokens (1000 in the messages, 25 in the completion)"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_in_openais_words(
    turn_type: TurnType, prompt_tokens: int, fields: dict[str, Any], numbers: str
) -> None:
    with pytest.raises(ApiError) as refused:
        choose(PIN, turn_type, prompt_tokens, **fields)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "context_length_exceeded", "messages")
    assert refused.value.message.startswith(f"This model's maximum context length is 1024 tokens. However, {numbers}.")


def test_stop_strings_are_kept_on_every_turn() -> None:
    assert choose(PIN, TurnType.MAIN, stop=["END"]).stop == ("END",)


def test_top_k_zero_means_off() -> None:
    assert not choose(HONOUR, TurnType.SIDE, top_k=0).shaped


@pytest.mark.parametrize(
    ("policy", "turn_type", "fields", "header"),
    [
        (PIN, TurnType.MAIN, {"top_p": 0.5}, "pinned; temperature=0.7; max_new_tokens=64; repetition_penalty=1.1"),
        (
            PIN,
            TurnType.SIDE,
            {"top_p": 0.5, "seed": 3},
            "client; temperature=0.7; max_new_tokens=64; top_p=0.5; repetition_penalty=1.1; seed=3",
        ),
        (HONOUR, TurnType.MAIN, {"temperature": 0}, "client; temperature=0.0; max_new_tokens=64"),
    ],
)
def test_the_header_says_what_was_used(
    policy: SamplingPolicy, turn_type: TurnType, fields: dict[str, Any], header: str
) -> None:
    assert policy.describe(choose(policy, turn_type, **fields), turn_type) == header
