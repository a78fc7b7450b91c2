"""docs/MIGRATION.md names what the code takes, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.config import RunConfig
from openclaw_core.config.legacy import HINTS, KEYS, PARAMETERS, RETIRED
from openclaw_core.config.load import parameter_names

ROOT = Path(__file__).parents[2]
MIGRATION = (ROOT / "docs/MIGRATION.md").read_text()


def rows(heading: str) -> dict[str, str]:
    """First column → second, of the table below a heading of docs/MIGRATION.md."""
    section = MIGRATION.split(f"### {heading}\n")[1].split("\n#")[0]
    return {name: cell.strip() for name, cell in re.findall(r"^\| `([A-Z_]+)` \|([^|]*)\|", section, re.MULTILINE)}


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("Set a parameter", PARAMETERS),
        ("Say something of the hosts", HINTS),
        ("Hold a key", KEYS),
        ("Have no parameter", RETIRED),
    ],
)
def test_the_document_has_every_name_and_no_other(heading: str, table: dict[str, Any]) -> None:
    assert list(rows(heading)) == list(table)


def test_the_document_names_the_parameters_that_are_set() -> None:
    told = {name: re.findall(r"`([^`]+)`", cell) for name, cell in rows("Set a parameter").items()}
    assert told == {name: list(parameters) for name, parameters in PARAMETERS.items()}


def test_the_document_names_the_values_that_are_accepted() -> None:
    for name, cell in rows("Have no parameter").items():
        accepted = RETIRED[name].as_it_is
        assert cell == "any" if accepted is None else set(re.findall(r"`([^`]+)`", cell)) == accepted, name


def test_every_parameter_that_the_document_names_exists() -> None:
    sections = "|".join(RunConfig.model_fields)
    named = set(re.findall(rf"`((?:{sections})\.[a-z_.]+)", MIGRATION))
    assert len(named) > 50 and named - set(parameter_names()) == set()
