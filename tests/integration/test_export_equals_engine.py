"""What is exported is what is served: the same weights by checksum, the same greedy answers in fp32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.engines.local import LocalEngine
from openclaw_core.engines.protocol import GenerateRequest
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.types import Sampling
from openclaw_core.weights.arrays import as_arrays
from openclaw_core.weights.checksum import checksum, checksum_directory
from openclaw_core.weights.export import export_hf
from openclaw_core.weights.hf_files import HFWeights
from tests.engine_parts import answer, publish

PROMPTS = (
    "What is 12 times 4?",
    "Tom has 3 boxes with 4 apples each. How many apples has he?",
    "Explain what a fraction is.",
    "Write one sentence about the sea.",
    "How do I add 17 and 25 in my head?",
    "Say hello to the class.",
    "Which is more, a half or a third?",
    "Name three fruits.",
)
NEW_TOKENS = 16


@pytest.mark.model
@pytest.mark.timeout(600)
async def test_the_export_answers_as_the_engine_that_serves_the_published_weights(smollm2: Path, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    trained = {
        name: tensor.float() * (1 + 0.01 * torch.randn(tensor.shape, generator=generator))
        for name, tensor in HFWeights(smollm2).items()
    }
    engine = LocalEngine(smollm2, dtype="fp32", threads=2)
    await publish(engine, trained, 7, as_arrays)
    exported = export_hf(trained.items(), smollm2, tmp_path / "export")
    assert exported.checksum == checksum_directory(exported.path) == checksum(trained.items())

    renderer = ChatRenderer.from_pretrained(exported.path)
    model = AutoModelForCausalLM.from_pretrained(exported.path, dtype=torch.float32)
    for prompt in PROMPTS:
        ids = renderer.render([{"role": "user", "content": prompt}]).prompt_ids
        greedy = Sampling(temperature=0, max_new_tokens=NEW_TOKENS)
        served = await answer(engine, GenerateRequest(prompt, ids, greedy, renderer.stop_token_ids))
        with torch.no_grad():
            plain = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW_TOKENS)[0, len(ids) :]
        assert served.token_ids == tuple(plain.tolist())
        assert set(served.versions) == {7}
    engine.close()
