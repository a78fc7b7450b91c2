"""The trainer's log-probs and gradients against transformers, over the path of a real run: HF → torch_dist → megatron."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_core.weights.convert import convert_checkpoint
from tests import models
from tests.children import run_ranks
from tests.integration.step_case import Models


def by_transformers(directory: Path, ids: torch.Tensor, gradients: bool) -> dict[str, Any]:
    """Log-probs of all ids but the first, [b, s-1], and the gradients of their mean, in fp32."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.set_grad_enabled(gradients):
        logprobs = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    if gradients:
        logprobs.mean().backward()
    return {"logprobs": logprobs.detach(), "gradients": {name: parameter.grad for name, parameter in model.named_parameters()}}


def by_megatron(
    directory: Path,
    checkpoint: Path,
    ids: torch.Tensor,
    gradients: bool,
    scratch: Path,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
) -> dict[str, Any]:
    """The same in child processes, one a rank; the last rank's answer."""
    request, out = scratch / "request.pt", scratch / "out.pt"
    torch.save({"ids": ids, "gradients": gradients, "sequence_parallel": sequence_parallel}, request)
    run_ranks("tests.integration.parity_child", [directory, checkpoint, request, out], world_size=tensor_parallel)
    return torch.load(f"{out}.{tensor_parallel - 1}")


@pytest.mark.parametrize(
    ("family", "tied", "tensor_parallel", "sequence_parallel"),
    [
        ("qwen3", True, 1, False),
        ("qwen3", False, 1, False),
        ("llama", True, 1, False),
        pytest.param("qwen3", False, 2, False, marks=pytest.mark.ranks),
        pytest.param("qwen3", True, 2, True, marks=pytest.mark.ranks),
    ],
)
def test_tiny_models_agree_with_transformers(
    tmp_path: Path, family: str, tied: bool, tensor_parallel: int, sequence_parallel: bool
) -> None:
    make = {"llama": models.tiny_llama, "qwen3": models.tiny_qwen3}[family]
    pair = Models.make(make, tied=tied)
    ids = torch.randint(3, models.VOCAB_SIZE, (3, 48), generator=torch.Generator().manual_seed(1))
    expected = by_transformers(pair.hf, ids, gradients=True)
    result = by_megatron(pair.hf, pair.policy_checkpoint, ids, True, tmp_path, tensor_parallel, sequence_parallel)

    assert (result["logprobs"] - expected["logprobs"]).abs().max() < 1e-5
    assert result["gradients"].keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        assert (result["gradients"][name] - gradient).abs().max() < 1e-4 * gradient.abs().max(), name


@pytest.mark.model
def test_smollm2_agrees_with_transformers_on_texts_of_up_to_512_tokens(smollm2: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    chat = [{"role": "user", "content": models.TEXT[:600]}, {"role": "assistant", "content": models.TEXT * 2}]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False), models.TEXT[:1000]]
    rows = [torch.tensor(tokenizer(text).input_ids[:512]) for text in texts]
    assert len(rows[0]) == 512
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    expected = by_transformers(smollm2, ids, gradients=False)
    checkpoint = tmp_path / "torch_dist"
    convert_checkpoint(smollm2, checkpoint, "fp32", print)
    result = by_megatron(smollm2, checkpoint, ids, False, tmp_path)

    for row, length in enumerate(map(len, rows)):
        difference = (result["logprobs"] - expected["logprobs"])[row, : length - 1].abs().max()
        assert difference < 1e-4, f"text {row} of {length} tokens"
