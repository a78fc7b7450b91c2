"""Pieces of a /generate stream that a test server does not send by itself: spans, NaN, contradictions; and what is asked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from openclaw_core.engines.protocol import EngineAborted, EngineError, EngineFull, GenerateRequest, Grammar, RequestRefused
from openclaw_core.engines.sglang.stream import AnswerReader
from openclaw_core.engines.sglang.wire import generate_body
from openclaw_core.types import FinishReason, Sampling
from tests.sglang_contract.contract import VERSIONS, Contract


def _piece(entries: list[Any], total: int, *, output_ids: list[int] | None = None, **meta: Any) -> dict[str, Any]:
    ids = output_ids if output_ids is not None else [entry[1] for entry in entries]
    return {
        "output_ids": ids,
        "meta_info": {
            "completion_tokens": total,
            "output_token_logprobs": entries,
            "weight_version": "7",
            "finish_reason": None,
            **meta,
        },
    }


A, B, C = (-0.5, 10, None), (-1.0, 11, None), (-1.5, 12, None)
STOP = {"type": "stop", "matched": 12}


def test_cumulative_pieces_and_increments_give_the_same_tokens() -> None:
    cumulative, increments = AnswerReader("a"), AnswerReader("b")
    one = [*cumulative.take(_piece([A], 1)), *cumulative.take(_piece([A, B, C], 3, finish_reason=STOP))]
    other = [*increments.take(_piece([A], 1)), *increments.take(_piece([B, C], 3, finish_reason=STOP))]
    assert one == other
    assert [piece.token_ids for piece in one] == [(10,), (11, 12)]
    assert [piece.finish_reason for piece in one] == [None, FinishReason.STOP]


def test_increments_of_ids_with_cumulative_logprobs_are_read_too() -> None:
    reader = AnswerReader("a")
    reader.take(_piece([A], 1))
    (piece,) = reader.take(_piece([A, B, C], 3, output_ids=[11, 12]))
    assert (piece.token_ids, piece.logprobs) == ((11, 12), (-1.0, -1.5))


def test_a_piece_over_an_update_is_split_where_the_version_changes() -> None:
    reader = AnswerReader("a")
    reader.take(_piece([A], 1))
    spans = [{"version": "7", "start": 0, "end": 2}, {"version": "8", "start": 2, "end": 3}]
    pieces = reader.take(_piece([A, B, C], 3, weight_versions=spans, weight_version="8", finish_reason=STOP))
    assert [(piece.token_ids, piece.weight_version) for piece in pieces] == [((11,), 7), ((12,), 8)]
    assert [piece.finish_reason for piece in pieces] == [None, FinishReason.STOP]


def test_a_missing_logprob_is_nan_and_never_zero() -> None:
    (piece,) = AnswerReader("a").take(_piece([(None, 10, None)], 1))
    assert math.isnan(piece.logprobs[0])


def test_nan_in_the_model_is_an_error_though_the_server_calls_it_a_stop() -> None:
    with pytest.raises(EngineError, match="NaN"):
        AnswerReader("a").take(_piece([A], 1, finish_reason={"type": "stop", "matched": "NaN happened"}))


@pytest.mark.parametrize(
    "piece",
    [
        _piece([A], 2),
        _piece([A], 1, output_ids=[99]),
        _piece([A, B, C], 3, weight_versions=[{"version": "7", "start": 0, "end": 2}]),
        _piece([A], 1, finish_reason={"type": "magic"}),
        {"meta_info": {"completion_tokens": 1, "output_token_logprobs": [[1.0]]}},
        {"text": "no meta_info"},
    ],
)
def test_a_piece_that_contradicts_itself_is_an_error(piece: dict[str, Any]) -> None:
    with pytest.raises(EngineError):
        AnswerReader("a").take(piece)


@pytest.mark.parametrize(
    ("status", "begun", "error"),
    [
        (None, True, EngineAborted),
        (400, False, RequestRefused),
        (503, False, EngineFull),
        (503, True, EngineError),
        (500, False, EngineError),
    ],
)
def test_an_abort_is_the_error_that_its_status_says_and_keeps_its_tokens(status: Any, begun: bool, error: type) -> None:
    reader = AnswerReader("a")
    reason = {"type": "abort", "message": "because", "status_code": status}
    pieces = reader.take(_piece([A] if begun else [], int(begun), finish_reason=reason))
    assert [piece.token_ids for piece in pieces if piece.token_ids] == ([(10,)] if begun else [])
    assert reader.fault is not None
    assert type(reader.fault.error("a", begun=begun)) is error


def _asked(**fields: Any) -> GenerateRequest:
    sampling = Sampling(temperature=1, max_new_tokens=8, frequency_penalty=0.5, presence_penalty=0.25, seed=3)
    return replace(GenerateRequest("r", (1, 2, 5, 5, 6), sampling, (2,)), **fields)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf"])
def test_the_body_states_every_sampling_field_in_the_versions_own_types(version: str, kind: Any) -> None:
    contract = Contract.load(version)
    body = generate_body(_asked(grammar=Grammar(kind, "text"), continued=3, top_logprobs=2), "r" * 32)
    contract.check_gate(body)
    contract.parse("GenerateReqInput", body)
    params = contract.sampling(body["sampling_params"])
    assert params[kind] == "text"
    # These are what a model's generation_config or a server's preferences would fill in.
    own = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"}
    assert own <= body["sampling_params"].keys()
    assert body["sampling_params"]["no_stop_trim"] is True


def test_penalties_of_the_answer_so_far_are_carried_over_as_a_bias() -> None:
    body = generate_body(_asked(continued=3), "r" * 32)
    assert body["sampling_params"]["logit_bias"] == {"5": -1.25, "6": -0.75}
    assert "logit_bias" not in generate_body(_asked(), "r" * 32)["sampling_params"]


def test_a_long_answer_comes_several_tokens_a_piece() -> None:
    def interval(tokens: int) -> int:
        return generate_body(_asked(sampling=Sampling(temperature=1, max_new_tokens=tokens)), "r")["sampling_params"][
            "stream_interval"
        ]

    assert [interval(tokens) for tokens in (1, 1024, 1025, 8192)] == [1, 1, 2, 8]
