"""The report of a run: one file, complete, and deaf to what users and models say in it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openclaw_core import cli
from openclaw_core.config import load_config
from openclaw_core.report.gather import episodes, gather, pairs, settings, shown_steps
from openclaw_core.report.page import write_page
from openclaw_core.report.series import read_rows
from openclaw_core.rundir import RunDir, create_run
from tests.report_parts import NASTY, real_rows, run_with_report, write_rows


class Page(HTMLParser):
    """Tags, attributes and text as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return run_with_report(tmp_path, steps=60)


@pytest.fixture
def page(run: RunDir) -> Page:
    return Page(write_page(gather(run), run.report_file).read_text())


def test_texts_of_users_and_models_stay_texts(page: Page) -> None:
    assert NASTY in page.text, "it is shown as it was said"
    assert not {"script", "img", "iframe", "object", "link"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_it_asks_nothing_of_anywhere(page: Page) -> None:
    links = [value for name, value in page.attributes if name in ("href", "xlink:href", "src", "srcset", "action")]
    assert links and all(link.startswith("#") for link in links)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert "svg" in page.tags


def test_it_follows_the_readers_light_or_dark(run: RunDir, page: Page) -> None:
    text = run.report_file.read_text()
    assert "color-scheme: light dark" in text and "prefers-color-scheme: dark" in text


def test_every_section_says_what_the_run_did(page: Page) -> None:
    shown = " ".join(page.text.split())
    assert "60 of 20 steps" in shown
    assert "before: 0 of 1 satisfied" in shown and "after: 1 of 1 satisfied" in shown
    assert "An old answer." in shown and "A new answer." in shown
    assert "A robe takes 2 bolts" in shown, "what was asked in a sample"
    assert "Write plain sentences." in shown, "its hint"
    assert "The user asks for another form." in shown, "its vote"
    assert "votes that agree with the majority" in shown
    assert "judged +1" in shown and "judged -1" in shown


def test_answers_are_side_by_side_with_the_same_question(run: RunDir) -> None:
    ((found,),) = pairs(gather(run)).values()
    assert (found.before and found.before.answer, found.after and found.after.satisfied) == ("An old answer.", True)
    (run.evaluation / "after.json").unlink()
    ((found,),) = pairs(gather(run)).values()
    assert found.before is not None and found.after is None


def test_a_run_that_has_done_nothing_has_a_report(tmp_path: Path) -> None:
    run = create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "new")
    page = Page(write_page(gather(run), run.report_file).read_text())
    assert "The run has not ended: 0 of 20 steps." in page.text
    assert "No step is reported yet." in page.text and "Not evaluated yet." in page.text


def test_the_table_has_the_last_steps_with_their_health(run: RunDir) -> None:
    rows = real_rows(60)
    rows[-1] |= {"health/state": "stop", "health/findings": {"grad_norm_diverging": 58}}
    rows[-2] |= {"health/state": "warn", "health/findings": {"grad_norm_diverging": 58}}
    write_rows(run, rows)
    text = write_page(gather(run), run.report_file).read_text()
    assert "🔴 stop" in text and "🟡 warn" in text
    assert '<td class="n">11</td>' in text and '<td class="n">10</td>' not in text
    assert [(each.rule, each.since, each.until) for each in episodes(rows)] == [("grad_norm_diverging", 58, 60)]
    assert "grad_norm_diverging" in text


def test_findings_are_said_with_their_advice(run: RunDir) -> None:
    write_rows(run, [row | {"train/grad_norm": 400.0} for row in real_rows(9)])
    text = write_page(gather(run), run.report_file).read_text()
    assert "Training diverges: grad_norm = 400, over 50" in text and "lower optimizer.lr" in text


def test_a_last_line_that_is_being_written_is_left_out(run: RunDir) -> None:
    with run.metrics_file.open("a") as file:
        file.write('{"step": 61, "rollout/rew')
    assert len(read_rows(run.metrics_file)) == 60


def test_no_key_is_shown(tmp_path: Path) -> None:
    secret = "hunter2-of-the-engine"
    environment = {"engine.sglang.environment": {"HF_TOKEN": secret, "OMP_NUM_THREADS": "7"}}
    config = load_config("local-cpu", {"paths.runs": str(tmp_path), **environment})
    run = create_run(config, "r", {"judge": "key-of-the-judge"})
    text = write_page(gather(run), run.report_file).read_text()
    assert secret not in text and "OMP_NUM_THREADS" in text
    assert not [key for key in json.loads(run.secrets_file.read_text()).values() if isinstance(key, str) and key in text]
    assert "key-of-the-judge" not in text


def test_settings_that_are_not_the_presets_are_marked() -> None:
    found = {each.name: each for each in settings(load_config("local-cpu", {"train.steps": 7}))["train"]}
    assert (found["train.steps"].value, found["train.steps"].preset) == ("7", "20")
    assert found["train.save_interval"].preset is None


def test_samples_come_from_the_driver_where_the_ledger_is_elsewhere(run: RunDir) -> None:
    kept = gather(run).samples
    run.samples_file.write_text(json.dumps(kept))
    for file in run.path.glob("ledger.sqlite*"):
        file.unlink()
    assert kept and gather(run).samples == kept


@pytest.mark.parametrize(("steps", "shown"), [([], []), ([1], [1]), ([1, 2], [1, 2]), (list(range(1, 10)), [1, 7, 8, 9])])
def test_samples_are_of_the_first_and_of_the_last_steps(steps: list[int], shown: list[int]) -> None:
    assert shown_steps(steps) == shown


def test_the_command_needs_the_files_alone(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "first.html"
    done = CliRunner().invoke(cli.app, ["report", str(run.path), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["path"], told["steps"], told["run_id"]) == (str(out), 60, "r")
    assert out.read_text().startswith("<!doctype html>")
    assert not run.report_file.exists()


def test_the_command_says_where_it_cannot_write(run: RunDir, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["report", str(run.path), "--out", str(tmp_path / "no" / "r.html")])
    assert done.exit_code != 0 and "cannot be written" in str(done.exception)
