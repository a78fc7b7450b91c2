"""The trainer's step on a real Megatron model against transformers in float64 and the plain reference of the formulas."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.types import Sample
from tests.models import VOCAB_SIZE, tiny_llama, tiny_qwen3
from tests.unit import reference_loss

TEMPERATURE = 0.7


def make_samples() -> list[Sample]:
    """Very different lengths, zero to three hints, a masked token, a sample without unmasked tokens, a shaped turn."""
    rng = random.Random(5)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(n))

    def sample(name: str, prompt: int, response: int, hints: int, reward: float, **changes: Any) -> Sample:
        x = ids(prompt)
        values: dict[str, Any] = {
            "sample_id": name,
            "session_id": "s",
            "prompt_ids": x,
            "response_ids": ids(response),
            "rollout_logprobs": tuple(-6.0 - rng.random() for _ in range(response)),
            "loss_mask": (1,) * response,
            "reward": reward,
            "teacher_prompt_ids": tuple(x[:4] + ids(3 + c) + x[4:] for c in range(hints)),
            "hints": ("hint",) * hints,
            "temperature": TEMPERATURE,
            "shaped": False,
            "weight_version": 0,
            "truncated": False,
        }
        return Sample(**{**values, **changes})

    return [
        sample("reward only", 12, 7, 0, 1.0),
        sample("three hints", 30, 9, 3, -1.0),
        sample("hints only", 5, 3, 1, 0.0, loss_mask=(1, 0, 1)),
        sample("all masked", 8, 4, 2, -1.0, loss_mask=(0,) * 4),
        sample("shaped", 17, 6, 2, 1.0, shaped=True),
    ]


def expected(hf: Path, start: Path, samples: list[Sample], settings: reference_loss.Settings) -> tuple[Any, dict[str, Any]]:
    """Loss and gradients from full logits of transformers in float64."""
    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float64)
    base = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float64)

    def logits(of: Any, prompt: tuple[int, ...], response: tuple[int, ...]) -> torch.Tensor:
        return of(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]

    plain = []
    for s in samples:
        z = logits(model, s.prompt_ids, s.response_ids)
        with torch.no_grad():
            ref = logits(base, s.prompt_ids, s.response_ids)
            teacher = [logits(model, prompt, s.response_ids) for prompt in s.teacher_prompt_ids]
        plain.append(
            reference_loss.Sample(
                z,
                z.detach(),
                ref,
                teacher,
                list(s.response_ids),
                list(s.rollout_logprobs),
                list(s.loss_mask),
                s.reward,
                TEMPERATURE,
                s.shaped,
            )
        )
    result = reference_loss.reference_loss(plain, settings, len(samples))
    result.loss.backward()
    return result, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("make", "tied", "micro_batch", "modes"),
    [
        (tiny_llama, True, 5, {}),
        (tiny_llama, True, 2, {"loss.subset_mode": "teacher", "loss.hint_selection": "token_optimal"}),
        (tiny_qwen3, True, 1, {"loss.subset_mode": "overlap", "loss.hint_selection": "shortest"}),
        (tiny_qwen3, False, 2, {"loss.shaped_turns": "opd_only", "loss.opd_center": True}),
    ],
)
def test_loss_and_gradients_equal_the_formulas(
    tmp_path: Path, make: Callable[..., Path], tied: bool, micro_batch: int, modes: dict[str, Any]
) -> None:
    hf = make(tmp_path / "hf", seed=1, tied=tied)
    start = make(tmp_path / "start", seed=2, tied=tied)
    samples = make_samples()
    overrides = {"loss.kl_coef": 0.5, "loss.head_chunk": 4, "loss.max_logprob_diff": 5.0, **modes}
    names = {key.removeprefix("loss."): value for key, value in overrides.items()}
    kept = {key: value for key, value in names.items() if key in reference_loss.Settings.__dataclass_fields__}
    result, gradients = expected(hf, start, samples, reference_loss.Settings(**kept))

    probe = {samples[0].sample_id: tuple(-6.5 for _ in samples[0].response_ids)}
    (tmp_path / "samples").write_bytes(pickle.dumps((samples, probe)))
    arguments = [str(hf), str(start), str(tmp_path / "samples"), str(tmp_path / "out"), str(micro_batch), json.dumps(overrides)]
    subprocess.run([sys.executable, "-m", "tests.integration.step_child", *arguments], check=True, timeout=240)
    ours = torch.load(tmp_path / "out", weights_only=False)

    assert ours["masked"] == {}
    assert ours["loss"] == pytest.approx(result.loss.item(), abs=1e-5)
    assert set(ours["gradients"]) == set(gradients)
    difference = sum(float((ours["gradients"][n].double() - g).square().sum()) for n, g in gradients.items()) ** 0.5
    total = sum(float(g.square().sum()) for g in gradients.values()) ** 0.5
    assert difference / total < 2e-5
    metrics = ours["metrics"]
    assert metrics["kl"] == pytest.approx(result.kl, rel=1e-4)
    assert metrics["opd_loss"] == pytest.approx(result.opd, abs=1e-5)
    assert metrics["c_star_mean"] == pytest.approx(sum(result.c_star) / len(result.c_star))
    assert metrics["sel_overlap"] == pytest.approx(sum(result.overlap) / len(result.overlap))


def test_a_sample_that_engine_and_trainer_disagree_on_is_masked_but_counts(tmp_path: Path) -> None:
    hf = tiny_llama(tmp_path / "hf", seed=1)
    samples = make_samples()[:2]
    far = Sample(**{**{f: getattr(samples[1], f) for f in Sample.__slots__}, "rollout_logprobs": (-30.0,) * 9})
    settings = reference_loss.Settings(kl_coef=0.5)
    result, _ = expected(hf, hf, [samples[0]], settings)
    (tmp_path / "samples").write_bytes(pickle.dumps(([samples[0], far], {samples[0].sample_id: (-6.0,) * 7})))
    arguments = [str(hf), str(hf), str(tmp_path / "samples"), str(tmp_path / "out"), "2", json.dumps({"loss.kl_coef": 0.5})]
    subprocess.run([sys.executable, "-m", "tests.integration.step_child", *arguments], check=True, timeout=240)
    ours = torch.load(tmp_path / "out", weights_only=False)
    assert ours["masked"] == {"three hints": "logprob_mismatch"}
    assert ours["loss"] == pytest.approx(result.loss.item() / 2, abs=1e-5)
