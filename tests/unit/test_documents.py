"""Documentation that people follow: links lead somewhere, pages made from the code are up to date, the site builds."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from openclaw_core.config.document import document

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    kept = (c for c in text if c in " -_" or unicodedata.category(c)[0] in "LN")
    return "".join(kept).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#{1,6} +(.+?) *$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {anchor(heading) for heading in headings}


def broken(page: Path) -> list[str]:
    found: list[str] = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (fragment and fragment not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path):
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading: `with` code\n[a](page.md#a-heading-with-code) [b](none.md) [c](#nowhere) [d](https://x.invalid)\n"
    )
    assert broken(page) == ["none.md", "#nowhere"]


def test_every_parameter_has_a_line_that_says_what_it_is_for():
    lines = [line for line in document().splitlines() if line.startswith("| `")]
    assert [line for line in lines if line.endswith("|  |")] == []
    assert any(line.startswith("| `rollout.batch_size` | whole number ≥ 1 | `16`") for line in lines)


def test_the_page_of_parameters_is_up_to_date():
    said = "run `python -m openclaw_core.config.document > docs/CONFIG.md`"
    assert (ROOT / "docs/CONFIG.md").read_text(encoding="utf-8") == document(), said


def test_the_site_builds_with_every_page_in_its_place(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"}
    assert pages <= {page.stem for page in (tmp_path / "site").glob("*.html")}
