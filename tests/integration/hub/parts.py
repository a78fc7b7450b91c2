"""A small model of a hub, and what tests of its download share."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from openclaw_core.weights.hub_client import HubAccess, Pace
from openclaw_core.weights.sources import MARKER, FetchResult, fetch_model

REPOSITORY = "org/tiny"
SOURCE = f"hf://{REPOSITORY}"
OLD, NEW = "a" * 40, "b" * 40
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
MB = 1_000_000
QUICK = Pace(tries=3, first_s=0.01, longest_s=0.05, connect_s=2, silence_s=2)
TOKEN = "hf_secretsecretsecret"


def content(seed: str, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def model(seed: str, size: int = 3 * MB) -> dict[str, bytes]:
    """A repository as publishers make them: with what is not needed beside what is."""
    index = {"metadata": {}, "weight_map": {"a": FIRST, "b": SECOND, "c": FIRST}}
    return {
        "config.json": json.dumps({"model_type": "llama", "seed": seed}).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "merges.txt": b"a b\n",
        "LICENSE": b"free",
        INDEX: json.dumps(index).encode(),
        FIRST: content(f"{seed} 1", size),
        SECOND: content(f"{seed} 2", size),
        "README.md": b"# Tiny",
        ".gitattributes": b"",
        "consolidated.safetensors": content("twice", 100),
        "pytorch_model.bin": content("pickle", 100),
        "original/params.json": b"{}",
    }


NEEDED = {"config.json", "tokenizer.json", "tokenizer_config.json", "merges.txt", "LICENSE", INDEX, FIRST, SECOND}


def fetch(source: str, place: Path, *urls: str, token: str | None = None, log: Callable[[str], None] = print) -> FetchResult:
    return fetch_model(source, place, log, hub=lambda: HubAccess(urls, token), pace=QUICK)


def holds(place: Path, files: dict[str, bytes], commit: str) -> None:
    """The needed files of a commit and nothing else, and a marker that says so."""
    assert {path.name for path in place.iterdir()} == {*NEEDED, MARKER}
    assert all((place / name).read_bytes() == files[name] for name in NEEDED)
    marker = json.loads((place / MARKER).read_text())
    assert marker["commit"] == commit
    assert marker["files"] == {
        name: {"bytes": len(files[name]), "sha256": hashlib.sha256(files[name]).hexdigest()} for name in NEEDED
    }
    assert list(place.parent.iterdir()) == [place]


def nothing(place: Path) -> bool:
    return not place.parent.exists() or not list(place.parent.iterdir())


CHILD = """
import sys
from pathlib import Path
from openclaw_core.weights.sources import fetch_model

print("begins", flush=True)
fetch_model(sys.argv[1], Path(sys.argv[2]), lambda line: print(line, flush=True))
"""


def child(source: str, place: Path, **environment: str) -> subprocess.Popen[str]:
    """A process that fetches with what its environment says."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, source, str(place)],
        env={**os.environ, "HF_HUB_OFFLINE": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
