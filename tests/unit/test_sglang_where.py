"""Where a run's SGLang servers are: on their hosts' addresses, on their own cards, and on loopback beside the service."""

from __future__ import annotations

from pathlib import PurePosixPath

from openclaw_core.config import load_config
from openclaw_core.engines.sglang.command import LOOPBACK
from openclaw_core.engines.sglang.where import engine_at, judge_at

RUN = PurePosixPath("/openclaw/runs/r")


def test_an_engine_on_the_head_is_on_loopback_and_one_elsewhere_at_its_hosts_address() -> None:
    beside = engine_at(load_config("4b-2nodes"), RUN, 0, "sk")
    assert (beside.address, beside.cards) == (LOOPBACK, (4, 5))
    config = load_config("32b-8nodes")
    there = [engine_at(config, RUN, index, "sk") for index in range(2)]
    assert [(at.address, at.cards) for at in there] == [("rollout-1", tuple(range(8))), ("rollout-2", tuple(range(8)))]
    assert [str(at.key.file) for at in there if at.key] == [f"{RUN}/sglang-0.yaml", f"{RUN}/sglang-1.yaml"]


def test_the_judge_has_the_cards_that_the_others_leave() -> None:
    for preset, cards in (("4b-1node", (7,)), ("4b-2nodes", tuple(range(8)))):
        config = load_config(preset)
        (host,) = config.cluster.with_role("prm")
        at = judge_at(config, RUN, host, "sk")
        assert (at.address, at.cards) == (host.name, cards)
        assert at.key is not None
        assert (str(at.key.file), at.key.text) == (f"{RUN}/judge-{host.name}.yaml", "api-key: sk\n")
    assert at.url(1) == "http://prm:1"
