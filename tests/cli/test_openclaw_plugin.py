"""The header plugin, by the test runner of the Node that the CLI uses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from openclaw_core.config.feedback import OpenClawCLIConfig
from openclaw_core.feeder.openclaw_config import PLUGIN, PLUGIN_ID
from openclaw_core.feeder.openclaw_install import Installation

pytestmark = pytest.mark.cli

TESTS = Path(__file__).parent / "turn_headers.test.mjs"


def test_plugin_passes_its_tests() -> None:
    node = Installation.find(OpenClawCLIConfig()).node
    environment = {"PLUGIN_URL": (PLUGIN / "index.js").as_uri(), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [node, "--test", "--test-reporter=tap", TESTS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "\n# fail 0\n" in ran.stdout
    assert "\n# skipped 0\n" in ran.stdout


def test_manifest_names_the_plugin_and_what_it_loads() -> None:
    manifest = json.loads((PLUGIN / "openclaw.plugin.json").read_text())
    package = json.loads((PLUGIN / "package.json").read_text())
    assert manifest["id"] == PLUGIN_ID
    assert manifest["version"] == package["version"]
    (extension,) = package["openclaw"]["extensions"]
    assert (PLUGIN / extension).is_file()
