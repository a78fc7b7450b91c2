"""One global batch, one gradient: however it is split over micro-batches and ranks, and in each form of the loss.

Everything is compared in fp32 with one rank, one micro-batch and the colocated form, which test_colocated_step.py holds to
the formulas. Every comparison has a case beside it in which one link is broken on purpose, and which must fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.types import Sample
from tests.integration.step_case import Models, SampleMaker, StepResult, run_cases
from tests.models import tiny_llama, tiny_qwen3

LOSS_TOLERANCE = 1e-6
GRADIENT_TOLERANCE = 5e-6
"""Norm of the difference over the norm, all parameters together."""
TENSOR_TOLERANCE = 5e-5
"""Largest difference over largest value, tensor by tensor."""
TOPK_GAP = 1e-4
"""Nats between the K-th and the next logit: below it round-off could change a set, and with it the loss."""
ONE, FOUR = 4000, 200
"""train.max_tokens_per_rank for one micro-batch of 16 samples, and for four."""
RANDOM = {"loss.hint_selection": "random"}


def make_samples(seed: int) -> list[Sample]:
    """16 of 9 to 120 tokens; some without hints, two without an unmasked token, one shaped."""
    rng, sample = random.Random(seed), SampleMaker(seed)
    samples: list[Sample] = []
    for i in range(16):
        prompt, response = (rng.randint(5, 12), rng.randint(2, 6)) if i % 4 else (rng.randint(40, 90), rng.randint(8, 30))
        hints, reward = (0, 1.0) if i % 5 == 0 else (1 + i % 3, float(rng.choice((-1, 0, 1))))
        mask = tuple(0 if i in (3, 9) or rng.random() < 0.1 else 1 for _ in range(response))
        samples.append(sample(f"sample {i}", prompt, response, hints, reward, loss_mask=mask, shaped=i == 6))
    return samples


FAMILIES = {
    "llama, tied": (tiny_llama, True, 1),
    "qwen3, untied": (tiny_qwen3, False, 3),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    make, tied, seed = FAMILIES[request.param]
    return Family(make, tied, seed, tmp_path_factory.mktemp("step"))


class Family:
    """A model, its batch, and the result on one rank that all others are compared to."""

    def __init__(self, make: Callable[..., Path], tied: bool, seed: int, scratch: Path) -> None:
        self.models, self.samples, self.scratch = Models.make(make, tied=tied), make_samples(seed), scratch
        self.one_rank = self.run(
            case(ONE),
            case(ONE, **RANDOM),
            case(FOUR),
            case(FOUR, **RANDOM),
            case(FOUR, sabotage="mean_of_micro_batch"),
            case(FOUR, form="general"),
            case(FOUR, form="scored"),
            case(FOUR, form="general_scored"),
            case(FOUR, form="scored", sabotage="teacher_is_student"),
            case(FOUR, **{"train.recompute": "full"}),
            {**case(ONE), "split": 4},
        )
        self.expected, self.expected_random, *self.others = self.one_rank

    def run(self, *cases: dict[str, Any], **ranks: int) -> list[StepResult]:
        return run_cases(self.models, self.scratch, self.samples, cases, **ranks)


def case(max_tokens: int, *, form: str = "cheap", sabotage: str | None = None, **overrides: Any) -> dict[str, Any]:
    return {"overrides": {"train.max_tokens_per_rank": max_tokens, **overrides}, "form": form, "sabotage": sabotage}


def differences(found: StepResult, expected: StepResult) -> tuple[float, float, float]:
    """Of the loss; of the gradient, by norm; and of the worst tensor."""
    assert found.gradients.keys() == expected.gradients.keys()
    pairs = [(found.gradients[name].double(), tensor.double()) for name, tensor in expected.gradients.items()]
    difference = sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5
    norm = sum(float(b.square().sum()) for _, b in pairs) ** 0.5
    worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    return abs(found.loss - expected.loss), difference / norm, worst


def assert_equal(found: StepResult, expected: StepResult) -> None:
    loss, gradient, worst = differences(found, expected)
    assert loss < LOSS_TOLERANCE
    assert gradient < GRADIENT_TOLERANCE
    assert worst < TENSOR_TOLERANCE
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    assert found.masked == expected.masked == {}
    absent, present = ({n: v for n, v in expected.metrics.items() if (v is None) is none} for none in (True, False))
    assert {name: found.metrics[name] for name in absent} == absent
    assert {name: found.metrics[name] for name in present} == pytest.approx(present, rel=1e-4, abs=1e-5)


def assert_differs(found: StepResult, expected: StepResult) -> None:
    """Far beyond what the comparison allows, so that it would have been noticed."""
    assert differences(found, expected)[1] > 100 * GRADIENT_TOLERANCE


def test_the_sets_are_clear_of_round_off(family: Family) -> None:
    model = AutoModelForCausalLM.from_pretrained(family.models.hf, dtype=torch.float64)
    gaps = []
    for s in family.samples:
        for prompt in (s.prompt_ids, *s.teacher_prompt_ids):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + s.response_ids])).logits[0, len(prompt) - 1 : -1] / s.temperature
            top = logits.topk(5).values
            gaps.append(float((top[:, 3] - top[:, 4]).min()))
    assert min(gaps) > TOPK_GAP


def test_micro_batches_change_nothing(family: Family) -> None:
    four, four_random, wrong, *_, four_by_four = family.others
    assert family.expected.micro_batches == [1]
    assert four.micro_batches == four_by_four.micro_batches == [4]
    for result in (four, four_by_four):
        assert_equal(result, family.expected)
    assert_equal(four_random, family.expected_random)
    assert_differs(family.expected_random, family.expected)
    assert_differs(wrong, family.expected)


def test_cheap_forms_equal_the_general_form(family: Family) -> None:
    _, _, _, general, scored, general_scored, wrong, *_ = family.others
    for form in (general, scored, general_scored):
        assert_equal(form, family.expected)
    assert_differs(wrong, family.expected)


def test_recomputation_changes_nothing(family: Family) -> None:
    assert_equal(family.others[-2], family.expected)


def test_data_parallel(family: Family) -> None:
    two, drawn, scored, unreduced, wrong = family.run(
        case(FOUR),
        case(FOUR, **RANDOM),
        case(FOUR, form="scored"),
        case(FOUR, sabotage="no_reduction"),
        case(FOUR, sabotage="mean_of_micro_batch"),
        data_parallel=2,
    )
    assert two.micro_batches[0] == two.micro_batches[1]
    for result in (two, scored):
        assert_equal(result, family.expected)
    assert_equal(drawn, family.expected_random)
    for result in (unreduced, wrong):
        assert_differs(result, family.expected)


def test_tensor_parallel(family: Family) -> None:
    sequence_parallel = {"train.sequence_parallel": True}
    plain, scored, sequence, recomputed, broken, unmarked, unsummed, half_norm = family.run(
        case(FOUR),
        case(FOUR, form="general_scored"),
        case(FOUR, **sequence_parallel),
        case(FOUR, **sequence_parallel, **{"train.recompute": "full"}),
        case(FOUR, sabotage="no_sum_over_vocabulary"),
        case(FOUR, sabotage="unmarked_norms", **sequence_parallel),
        case(FOUR, sabotage="unsummed_positions", **sequence_parallel),
        case(FOUR, sabotage="unmarked_shards"),
        tensor_parallel=2,
    )
    for result in (plain, scored, sequence, recomputed):
        assert_equal(result, family.expected)
    for result in (broken, unmarked, unsummed):
        assert_differs(result, family.expected)
    assert half_norm.grad_norm < 0.9 * family.expected.grad_norm


def test_tensor_and_data_parallel(family: Family) -> None:
    plain, sequence, broken = family.run(
        case(FOUR),
        case(FOUR, **{"train.sequence_parallel": True}),
        case(FOUR, sabotage="no_reduction"),
        tensor_parallel=2,
        data_parallel=2,
    )
    for result in (plain, sequence):
        assert_equal(result, family.expected)
    assert_differs(broken, family.expected)
