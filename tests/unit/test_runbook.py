"""The runbooks: both say the same, and name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from openclaw_core.config import load_config, preset_names
from openclaw_core.config.legacy import HINTS, KEYS, PARAMETERS, RETIRED
from openclaw_core.config.load import parameter_names
from openclaw_core.config.schema import RunConfig
from openclaw_core.planning import make_plan

DOCS = Path(__file__).parents[2] / "docs"
BOOKS = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("RUNBOOK.md", "RUNBOOK.zh-CN.md")}
ENGLISH, CHINESE = BOOKS.values()


def blocks(text: str) -> list[str]:
    return re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(text: str) -> list[str]:
    return re.findall(r"^(#+ (?:\d+\. )?)", prose(text), re.MULTILINE)


def test_both_have_the_same_sections() -> None:
    assert headings(ENGLISH) == headings(CHINESE)
    assert headings(ENGLISH)[1:] == [f"## {number}. " for number in range(1, 16)]


def test_both_have_the_same_commands_and_samples() -> None:
    assert blocks(ENGLISH) == blocks(CHINESE)
    assert len(blocks(ENGLISH)) > 8


def test_both_have_the_same_tables() -> None:
    def rows(text: str) -> list[int]:
        return [line.count("|") for line in prose(text).splitlines() if line.startswith("|")]

    def first(text: str) -> list[list[str]]:
        return [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in prose(text).splitlines() if line.startswith("|")]

    assert rows(ENGLISH) == rows(CHINESE)
    assert first(ENGLISH) == first(CHINESE)


def test_the_chinese_one_is_in_chinese() -> None:
    lines = [line for line in prose(CHINESE).splitlines() if len(line) > 40 and not line.startswith("|")]
    assert all(re.search(r"[\u4e00-\u9fff]", line) for line in lines)
    assert not re.search(r"[\u4e00-\u9fff]", ENGLISH)


@pytest.mark.parametrize("book", BOOKS)
def test_every_name_and_parameter_exists(book: str) -> None:
    text = BOOKS[book]
    earlier = {*PARAMETERS, *HINTS, *KEYS, *RETIRED}
    section = text.split("## 15. ")[1]
    told = {
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([A-Z_]+)`", line.split("|")[1])
    }
    assert told - earlier == set() and set(HINTS) - {"NO_PROXY"} <= told and len(told) > 25
    sections = "|".join(RunConfig.model_fields)
    named = {name for name in re.findall(rf"`((?:{sections})\.[a-z_.]+)`", text) if not name.startswith("rollout/")}
    assert named - set(parameter_names()) == set()
    assert set(re.findall(r"(?:--preset|PRESET=|openclaw/)\s*([0-9a-z]+-[0-9a-z]+)", text)) <= set(preset_names())


@pytest.mark.parametrize("book", BOOKS)
def test_defaults_in_the_table_are_those_of_the_presets(book: str) -> None:
    config = load_config("4b-2nodes")
    for name, value in re.findall(r"^\| `[A-Z_]+` \| `([a-z_.]+)` \| ([\w.]+) \|$", BOOKS[book], re.MULTILINE | re.ASCII):
        section, leaf = name.split(".")
        assert str(getattr(getattr(config, section), leaf)) == value, name


@pytest.mark.parametrize("preset", ["4b-1node", "4b-2nodes", "32b-8nodes"])
@pytest.mark.parametrize("book", BOOKS)
def test_disk_and_memory_are_those_of_the_plan(book: str, preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = next(line for line in BOOKS[book].splitlines() if line.startswith(f"| `{preset}` |"))
    disk, memory = (int(size) for size in re.findall(r"(\d+) GB", row))
    hosts = make_plan(load_config(preset)).hosts
    assert disk == round(max(host.total for host in hosts) / 1e9)
    assert memory == round(max(host.save_memory for host in hosts) / 1e9)
