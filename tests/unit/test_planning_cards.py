"""Which cards of a host each role of the plan has, and that its servers are started on those."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_core.config import ConfigError, load_config
from openclaw_core.engines.sglang.command import ServerAt, ServerCommand, engine_command, judge_command
from tests.unit.test_planning import plan


@pytest.fixture(autouse=True)
def no_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_engines_cards_may_be_named_by_their_first_alone() -> None:
    named = plan("4b-2nodes", {"engine.sglang.devices": [], "engine.sglang.base_gpu_id": 4})
    assert named.placement == plan("4b-2nodes").placement


@pytest.mark.parametrize("preset", ["4b-1node", "4b-2nodes", "32b-8nodes"])
def test_no_card_of_a_preset_has_two_roles_and_every_server_is_started_on_its_own(preset: str, tmp_path: Path) -> None:
    config = load_config(preset)
    placement = plan(preset).placement
    assert placement.judge is not None
    roles = (*placement.roles, placement.judge)
    used = [(host, card) for role in roles for host in set(role.hosts) for card in role.cards_on(host)]
    assert len(used) == len(set(used)) == sum(role.ranks * len(role.hosts) for role in roles)
    for index, cards in enumerate(placement.engine.cards):
        assert cards_of(engine_command(config, tmp_path, index=index, at=ServerAt(cards=cards))) == cards
    for cards in placement.judge.cards:
        assert cards_of(judge_command(config, tmp_path, at=ServerAt(cards=cards))) == cards


def cards_of(command: ServerCommand) -> tuple[int, ...]:
    """Those that the server will use."""
    arguments = list(command.arguments)
    first = int(arguments[arguments.index("--base-gpu-id") + 1]) if "--base-gpu-id" in arguments else 0
    size = int(arguments[arguments.index("--tp-size") + 1])
    visible = command.environment["ASCEND_RT_VISIBLE_DEVICES"].split(",")
    return tuple(map(int, visible[first : first + size]))


def test_engines_that_share_a_host_follow_each_other_on_its_cards() -> None:
    placement = plan("4b-2nodes", {"engine.count": 2, "scorer.placement": "colocated", "engine.sglang.devices": [4, 5, 6, 7]})
    assert placement.placement.engine.cards == ((4, 5), (6, 7))


@pytest.mark.parametrize(
    ("devices", "base", "words"),
    [
        ([4, 4], 0, r"devices=\[4, 4\] names a card twice"),
        ([4, 5], 1, r"base_gpu_id=1 \+ tensor_parallel=2 = 3 cards, and devices=\[4, 5\] are 2"),
    ],
)
def test_cards_that_cannot_hold_an_engine_are_refused(devices: list[int], base: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config("4b-2nodes", {"engine.sglang.devices": devices, "engine.sglang.base_gpu_id": base})
