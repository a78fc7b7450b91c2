"""The trainer's step on a real Megatron model against transformers in float64 and the plain reference of the formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.types import Sample
from tests.integration.step_case import LOSS, TEMPERATURE, Job, Models, SampleMaker, run_jobs
from tests.models import tiny_llama, tiny_qwen3
from tests.unit import reference_loss


def make_samples() -> list[Sample]:
    """Very different lengths, zero to three hints, a masked token, a sample without unmasked tokens, a shaped turn."""
    sample = SampleMaker(seed=5)
    return [
        sample("reward only", 12, 7, 0, 1.0),
        sample("three hints", 30, 9, 3, -1.0),
        sample("hints only", 5, 3, 1, 0.0, loss_mask=(1, 0, 1)),
        sample("all masked", 8, 4, 2, -1.0, loss_mask=(0,) * 4),
        sample("shaped", 17, 6, 2, 1.0, shaped=True),
    ]


def expected(models: Models, samples: list[Sample], settings: reference_loss.Settings) -> tuple[Any, dict[str, Any]]:
    """Loss and gradients from full logits of transformers in float64."""
    model, base = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64) for path in (models.hf, models.start))

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


def settings_of(overrides: dict[str, Any]) -> reference_loss.Settings:
    names = {key.removeprefix("loss."): value for key, value in {**LOSS, **overrides}.items()}
    return reference_loss.Settings(
        **{key: value for key, value in names.items() if key in reference_loss.Settings.__dataclass_fields__}
    )


@pytest.mark.parametrize(
    ("make", "tied", "max_tokens", "modes"),
    [
        (tiny_llama, True, 1000, {}),
        (tiny_llama, True, 60, {"loss.subset_mode": "teacher", "loss.hint_selection": "token_optimal"}),
        (tiny_qwen3, True, 1, {"loss.subset_mode": "overlap", "loss.hint_selection": "shortest"}),
        (tiny_qwen3, False, 60, {"loss.shaped_turns": "opd_only", "loss.opd_center": True}),
    ],
)
def test_loss_and_gradients_equal_the_formulas(
    tmp_path: Path, make: Callable[..., Path], tied: bool, max_tokens: int, modes: dict[str, Any]
) -> None:
    models, samples = Models.make(make, tied=tied), make_samples()
    result, gradients = expected(models, samples, settings_of(modes))
    probe = {samples[0].sample_id: tuple(-6.5 for _ in samples[0].response_ids)}
    case = {"overrides": {"train.max_tokens_per_rank": max_tokens, **modes}}
    ((ours,),) = run_jobs([Job(models, samples, [case], probe)], tmp_path)

    assert ours.masked == {}
    assert ours.loss == pytest.approx(result.loss.item(), abs=1e-5)
    assert set(ours.gradients) == set(gradients)
    difference = sum(float((ours.gradients[n].double() - g).square().sum()) for n, g in gradients.items()) ** 0.5
    total = sum(float(g.square().sum()) for g in gradients.values()) ** 0.5
    assert difference / total < 2e-5
    assert ours.metrics["kl"] == pytest.approx(result.kl, rel=1e-4)
    assert ours.metrics["opd_loss"] == pytest.approx(result.opd, abs=1e-5)
    assert ours.metrics["c_star_mean"] == pytest.approx(sum(result.c_star) / len(result.c_star))
    assert ours.metrics["sel_overlap"] == pytest.approx(sum(result.overlap) / len(result.overlap))


def test_a_sample_that_engine_and_trainer_disagree_on_is_masked_but_counts(tmp_path: Path) -> None:
    models, samples = Models.make(tiny_llama, tied=True), make_samples()[:2]
    far = replace(samples[1], rollout_logprobs=(-30.0,) * 9)
    settings = {"loss.max_logprob_diff": 1.0}
    result, _ = expected(models, [samples[0]], settings_of(settings))
    ((ours,),) = run_jobs([Job(models, [samples[0], far], [{"overrides": settings}])], tmp_path)

    assert ours.masked == {"three hints": "logprob_mismatch"}
    assert ours.loss == pytest.approx(result.loss.item() / 2, abs=1e-5)


def test_the_advantage_is_the_reward_less_its_baseline(tmp_path: Path) -> None:
    models, samples = Models.make(tiny_llama, tied=True), make_samples()[:2]
    less = [replace(sample, reward=sample.reward - 0.25) for sample in samples]
    result, _ = expected(models, less, settings_of({}))
    based = [replace(sample, baseline=0.25) for sample in samples]
    ((ours,),) = run_jobs([Job(models, based, [{"overrides": {}}])], tmp_path)

    assert ours.loss == pytest.approx(result.loss.item(), abs=1e-5)
