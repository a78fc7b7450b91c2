"""`make test-pins`: the tests in an environment with the image's versions, and in no other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAND_IN = """#!/bin/sh
case "$*" in *pytest*) echo "the tests run" ;; *) exec {python} -S "$@" ;; esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """As make leaves it, but its python only says that the tests run, and knows only the packages of `install`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(STAND_IN.format(python=sys.executable))
    (tmp_path / "bin/python").chmod(0o755)
    for file in ("constraints.txt", ".installed"):
        (tmp_path / file).touch()
    return tmp_path


def install(environment: Path, versions: dict[str, str]) -> None:
    for name, version in versions.items():
        folder = environment / f"packages/{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def make(target: str, environment: Path) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", target, f"PINS={environment}"]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(environment / "packages")}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=variables)


def pins(file: Path) -> dict[str, str]:
    """Normalised name to version; a name that stands twice is an error."""
    found = re.findall(r"^([\w.-]+)==([^\s\\]+)", file.read_text(), re.MULTILINE)
    versions = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}
    assert len(versions) == len(found), f"{file}: a package stands twice"
    return versions


LOCK = pins(ROOT / "image/requirements.lock")


def test_the_tests_run_where_the_versions_are_the_images(environment: Path):
    install(environment, {"torch": f"{LOCK['torch']}+cpu", "transformers": LOCK["transformers"], "pytest": "9"})
    done = make("test-pins", environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pins hold" in done.stdout and done.stdout.endswith("the tests run\n")


def test_no_test_runs_where_pip_took_another_version(environment: Path):
    install(environment, {"torch": LOCK["torch"], "transformers": "5.2.9"})
    done = make("test-pins", environment)
    assert f"error: transformers: 5.2.9 is installed, pinned is {LOCK['transformers']}" in done.stdout
    assert done.returncode != 0 and "the tests run" not in done.stdout


def test_pip_is_told_the_images_version_of_what_both_environments_have(environment: Path):
    file = environment / "constraints.txt"
    file.unlink()
    assert make(str(file), environment).returncode == 0
    assert pins(file) == pins(ROOT / "constraints.txt") | LOCK
