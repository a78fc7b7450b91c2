"""Artifacts of Prefect, as text: texts of users stay texts, and the placement names every card."""

from __future__ import annotations

import re

import pytest

from openclaw_core.config import load_config
from openclaw_core.report.placement import placement_table
from openclaw_core.report.samples import ShownSample
from openclaw_core.report.table import COLUMNS, health_mark, metrics_table
from tasks.reporting import samples_markdown
from tests.report_parts import NASTY, real_rows

SAMPLE: ShownSample = {
    "turn_id": "t1",
    "asked": NASTY,
    "answer": "````\n# not a heading\n````",
    "next_state": None,
    "reward": -1,
    "hints": [NASTY],
    "votes": [{"question": "hint", "value": None, "raw": NASTY}],
    "truncated": True,
}


def outside_of_fences(markdown: str) -> str:
    """What a renderer takes for markup, by CommonMark's rule: a fence ends at one that is as long at least."""
    outside: list[str] = []
    fence = ""
    for line in markdown.split("\n"):
        found = re.match(r"`{3,}", line)
        if fence:
            if found and len(found[0]) >= len(fence) and not line.strip("`"):
                fence = ""
        elif found:
            fence = found[0]
        else:
            outside.append(line)
    assert not fence, "a block that does not end"
    return "\n".join(outside)


def test_what_users_and_models_say_is_no_markup() -> None:
    shown = samples_markdown({"step": 3, "good": None, "bad": SAMPLE})
    markup = outside_of_fences(shown)
    assert "script" not in markup and "javascript" not in markup and "not a heading" not in markup
    assert NASTY in shown
    assert (
        "# Step 3" in markup and "cut off at the length limit" in markup and "No turn of this step was judged good." in markup
    )


def test_every_card_of_a_cluster_is_somewhere() -> None:
    rows = placement_table(load_config("4b-2nodes"))
    trainer = [row for row in rows if row["role"] == "trainer"]
    assert [row["copy"] for row in trainer] == [f"{i + 1} of {len(trainer)}" for i in range(len(trainer))]
    cards = [(row["host"], card) for row in rows for card in re.findall(r"\d+", row["device"].partition("(")[0])]
    assert len(cards) == len(set(cards)) == 16


def test_on_one_machine_everything_is_on_its_cpu() -> None:
    rows = {row["role"]: row for row in placement_table(load_config("local-cpu"))}
    assert rows["trainer"]["device"] == "CPU"
    assert rows["scorer"]["device"] == "the trainer's ranks"
    assert rows["judge"]["device"] == "scripted, in the service's process"


def test_a_remote_judge_is_named_by_its_address() -> None:
    settings = {"judge.client": "openai", "judge.base_urls": ["http://judge:1/v1"], "judge.model": "m"}
    rows = {row["role"]: row for row in placement_table(load_config("local-cpu", settings))}
    assert rows["judge"]["device"] == "openai, http://judge:1/v1"


@pytest.mark.parametrize(
    ("row", "mark"),
    [
        ({"health/state": "healthy"}, "🟢 healthy"),
        ({"health/state": "stop"}, "🔴 stop"),
        ({"health/state": "?"}, "⚪ ?"),
        ({}, "–"),
    ],
)
def test_health_is_a_colour_and_a_word(row: dict[str, str], mark: str) -> None:
    assert health_mark(row) == mark


def test_the_table_is_bounded_and_says_what_does_not_exist() -> None:
    rows = [row | {"train/kl": None} for row in real_rows(300)]
    table = metrics_table(rows)
    assert [row["step"] for row in table] == [str(step) for step in range(251, 301)]
    assert set(table[0]) == {"step", "health", *COLUMNS}
    assert table[0]["KL"] == "–"
