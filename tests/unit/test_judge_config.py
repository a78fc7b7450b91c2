"""What a judge's configuration must say, and what it is told where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_core.config import load_config
from openclaw_core.config.load import ConfigError

URLS = ["http://judge:30000/v1"]


@pytest.mark.parametrize(
    ("judge", "complaint"),
    [
        ({"client": "openai", "model": "m"}, r"judge\.client=openai needs judge\.base_urls.*docs/JUDGE\.md"),
        ({"client": "sglang"}, r"judge\.client=sglang needs judge\.base_urls.*judge\.placement=prm"),
        (
            {"client": "sglang", "placement": "prm"},
            r"judge\.placement=prm needs cluster\.containers and a host with the role prm; or name",
        ),
        ({"client": "openai", "placement": "prm", "model": "m"}, r"judge\.client=openai needs judge\.base_urls"),
        ({"server.device": "npu", "server.page_size": 64}, r"page_size=64 of an SGLang server corrupts answers on npu"),
        ({"client": "openai", "base_urls": URLS}, r"needs judge\.model"),
        ({"client": "sglang", "base_urls": URLS, "body": {"top_p": 0.5}}, r"judge\.body is for judge\.client=openai"),
        ({"client": "openai", "base_urls": ["judge:30000"], "model": "m"}, "'judge:30000' is no URL"),
        ({"client": "openai", "base_urls": ["http://:30000"], "model": "m"}, "is no URL"),
        ({"loop_repeats": 1}, r"judge\.loop_repeats"),
        ({"tool_turn_share": 1.5}, r"judge\.tool_turn_share"),
        ({"unavailable": "zero"}, r"judge\.unavailable"),
    ],
)
def test_a_judge_that_cannot_work_is_refused(judge: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_config("local-cpu", {f"judge.{name}": value for name, value in judge.items()})


def test_a_key_does_not_belong_into_a_url() -> None:
    with pytest.raises(ConfigError, match="give the key as OPENCLAW_JUDGE_API_KEY instead") as raised:
        load_config("local-cpu", {"judge.base_urls": ["http://me:secret-1@judge:30000"]})
    assert "secret-1" not in str(raised.value)


@pytest.mark.parametrize(
    ("preset", "client", "model"),
    [
        ("local-cpu", "scripted", None),
        ("4b-2nodes", "sglang", "Qwen3-4B-Thinking-2507"),
        ("32b-8nodes", "sglang", "Qwen3-32B"),
    ],
)
def test_each_preset_names_its_judge(preset: str, client: str, model: str | None) -> None:
    config = load_config(preset)
    assert (config.judge.client, config.judge.model) == (client, model)
    assert config.judge_urls == (("http://prm:30020",) if client == "sglang" else ())


def test_the_judges_port_is_none_of_the_engines() -> None:
    with pytest.raises(ConfigError, match=r"judge\.server\.port=30010 is one of the engines' \(30010 on\)"):
        load_config("4b-1node", {"judge.server.port": 30010})
