"""The gateway's OpenAPI document: valid, and true of what the gateway takes and sends."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from openclaw_core.gateway.errors import context_overflow
from openclaw_core.gateway.openapi import openapi_document
from openclaw_core.gateway.schema import ChatRequest
from openclaw_core.gateway.wire import models_json

DOCUMENT = openapi_document("tiny")
HI = [{"role": "user", "content": "Hi"}]


def valid(name: str, value: Any) -> bool:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return Draft202012Validator(schema).is_valid(value)


def test_the_document_is_valid() -> None:
    validate(DOCUMENT)
    assert set(DOCUMENT["paths"]) == {
        "/v1/chat/completions",
        "/v1/models",
        "/v1/sessions/{session_id}/close",
        "/healthz",
        "/metrics",
    }


def test_every_field_of_a_request_is_described() -> None:
    assert set(DOCUMENT["components"]["schemas"]["ChatRequest"]["properties"]) == set(ChatRequest.model_fields)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({}, True),
        ({"stop": "END"}, True),
        ({"stop": ["a", "b"]}, True),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}}, True),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, True),
        ({"temperature": None}, True),
        ({"model": "other"}, False),
        ({"temperature": 3}, False),
        ({"stop": ""}, False),
        ({"tool_choice": "maybe"}, False),
        ({"reasoning_effort": "low"}, False),
        ({"colour": "red"}, False),
        ({"messages": [{"role": "wizard", "content": "a"}]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, False),
    ],
    ids=str,
)
def test_what_the_document_says_of_requests_is_what_is_taken(fields: dict[str, Any], fits: bool) -> None:
    assert valid("ChatRequest", {"model": "tiny", "messages": HI, **fields}) == fits


def test_errors_and_models_are_as_described() -> None:
    assert valid("ErrorBody", context_overflow(10, 11, 1).body())
    assert valid("ModelList", models_json("tiny", 1))
    assert not valid("ModelList", {"object": "list"})
