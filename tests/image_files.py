"""The image's files, as tests read them: the Dockerfiles' instructions, and the pins of image/."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PROJECT, STACK = "Dockerfile", "image/stack.Dockerfile"


class Instruction(NamedTuple):
    name: str
    text: str


def instructions(file: str) -> list[Instruction]:
    """A Dockerfile's instructions: comments dropped, continued lines joined."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines)).splitlines()
    words = (line.strip().partition(" ") for line in joined if line.strip())
    return [Instruction(name.upper(), rest.strip()) for name, _, rest in words]


def of(file: str, name: str) -> list[str]:
    return [found.text for found in instructions(file) if found.name == name]


def defaults(file: str) -> dict[str, str]:
    """Build arguments that have a value of their own."""
    words = (word for text in of(file, "ARG") for word in shlex.split(text) if "=" in word)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "image" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_pins = load("check_pins")


def pins(file: str) -> dict[str, str]:
    return check_pins.read_pins((ROOT / "image" / file).read_text())
