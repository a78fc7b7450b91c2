"""Generated request bodies: each is taken, or refused with a 400, before any engine sees it.

The whole gateway gets 2,000 of them in tests/integration/test_exact_tokens.py.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw_core.gateway.errors import ApiError, invalid
from openclaw_core.gateway.families import ChatMLRenderer, Qwen3FamilyRenderer, Qwen3ThinkingRenderer
from openclaw_core.gateway.rendering import ChatRenderer, RenderError
from openclaw_core.gateway.sampling import SamplingPolicy
from openclaw_core.gateway.schema import check_allowed, grammar_of, parse_chat
from openclaw_core.types import TurnType
from tests.models import tiny_tokenizer
from tests.qwen3_form import tiny_qwen3_tokenizer
from tests.request_bodies import Bodies

POLICY = SamplingPolicy("honour", temperature=0.7, repetition_penalty=1.0, max_response_tokens=64)


@cache
def renderers() -> tuple[ChatRenderer, ...]:
    plain, qwen, thinking = tiny_tokenizer(), tiny_qwen3_tokenizer(thinking=False), tiny_qwen3_tokenizer(thinking=True)
    families = ChatMLRenderer(plain, None), Qwen3FamilyRenderer(qwen), Qwen3ThinkingRenderer(thinking)
    return tuple(ChatRenderer(tokenizer, family) for tokenizer, family in zip((plain, qwen, thinking), families, strict=True))


def take(body: bytes, turn_type: TurnType, grammars: bool, renderer: ChatRenderer) -> None:
    """All that happens to a request before the engine sees it."""
    request, messages = parse_chat(body, max_messages=5)
    check_allowed(request, turn_type, grammars=grammars)
    try:
        rendering = renderer.render(messages, request.offered_tools)
    except RenderError as error:
        raise invalid(str(error), error.param) from error
    grammar_of(request)
    POLICY.choose(request, turn_type, len(rendering.prompt_ids), context_length=1024)


def test_any_body_is_taken_or_refused() -> None:
    outcomes: Counter[int | str] = Counter()

    @settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(body=Bodies, turn_type=st.sampled_from(TurnType), grammars=st.booleans(), family=st.integers(0, 2))
    def every(body: bytes, turn_type: TurnType, grammars: bool, family: int) -> None:
        try:
            take(body, turn_type, grammars, renderers()[family])
        except ApiError as refused:
            assert refused.status == 400
            assert refused.message
            json.dumps(refused.body(), ensure_ascii=False).encode()
            outcomes[refused.code or "none"] += 1
        else:
            outcomes["taken"] += 1

    every()
    assert outcomes["taken"] > 40, outcomes
    assert outcomes.keys() >= {"invalid_json", "invalid_value", "unsupported_value", "missing_required_parameter"}, outcomes
