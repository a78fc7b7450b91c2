"""One global batch, one gradient: however it is split over micro-batches and ranks, and in each form of the loss.

Everything is compared in fp32 with one rank, one micro-batch and the colocated form, which test_colocated_step.py holds to
the formulas. Every comparison has a case beside it in which one link is broken on purpose, and which must fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.trainer.token_table import TokenColumns
from openclaw_core.types import Sample
from tests.integration.step_case import Job, Models, SampleMaker, StepResult, run_jobs
from tests.models import tiny_llama, tiny_qwen3

pytestmark = pytest.mark.ranks

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
SEQUENCE = {"train.sequence_parallel": True}
RECOMPUTE = {"train.recompute": "full"}


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


def case(max_tokens: int, *, form: str = "cheap", sabotage: str | None = None, **overrides: Any) -> dict[str, Any]:
    return {"overrides": {"train.max_tokens_per_rank": max_tokens, **overrides}, "form": form, "sabotage": sabotage}


FAMILIES = {
    "llama, tied": (tiny_llama, True, 1),
    "qwen3, untied": (tiny_qwen3, False, 3),
}
LAYOUTS = {
    "one rank": {"tensor_parallel": 1, "data_parallel": 1},
    "DP2": {"tensor_parallel": 1, "data_parallel": 2},
    "TP2": {"tensor_parallel": 2, "data_parallel": 1},
    "TP2 x DP2": {"tensor_parallel": 2, "data_parallel": 2},
}
CASES = {
    "one rank": {
        "expected": case(ONE),
        "expected, drawn": case(ONE, **RANDOM),
        "four": case(FOUR),
        "four, drawn": case(FOUR, **RANDOM),
        "4 x 4": {**case(ONE), "split": 4},
        "local mean": case(FOUR, sabotage="mean_of_micro_batch"),
        "general": case(FOUR, form="general"),
        "scored": case(FOUR, form="scored"),
        "general, scored": case(FOUR, form="general_scored"),
        "other policy": case(FOUR, form="scored", sabotage="teacher_is_student"),
        "recomputed": case(FOUR, **RECOMPUTE),
    },
    "DP2": {
        "four": case(FOUR),
        "four, drawn": case(FOUR, **RANDOM),
        "scored": case(FOUR, form="scored"),
        "no reduction": case(FOUR, sabotage="no_reduction"),
        "local mean": case(FOUR, sabotage="mean_of_micro_batch"),
    },
    "TP2": {
        "plain": case(FOUR),
        "general, scored": case(FOUR, form="general_scored"),
        "sequence": case(FOUR, **SEQUENCE),
        "sequence, recomputed": case(FOUR, **SEQUENCE, **RECOMPUTE),
        "no sum over vocabulary": case(FOUR, sabotage="no_sum_over_vocabulary"),
        "unmarked norms": case(FOUR, sabotage="unmarked_norms", **SEQUENCE),
        "unsummed positions": case(FOUR, sabotage="unsummed_positions", **SEQUENCE),
        "unmarked shards": case(FOUR, sabotage="unmarked_shards"),
    },
    "TP2 x DP2": {
        "plain": case(FOUR),
        "sequence": case(FOUR, **SEQUENCE),
        "no reduction": case(FOUR, sabotage="no_reduction"),
    },
}

Results = Callable[[str], dict[str, StepResult]]
"""Layout → the results of its cases."""


def job(family: str, layout: str) -> Job:
    make, tied, seed = FAMILIES[family]
    return Job(Models.make(make, tied=tied), make_samples(seed), list(CASES[layout].values()))


@pytest.fixture(scope="module")
def by_layout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[list[StepResult]]]:
    """All families on one set of ranks, which takes longer to start than to answer."""

    @cache
    def run(layout: str) -> list[list[StepResult]]:
        jobs = [job(family, layout) for family in FAMILIES]
        return run_jobs(jobs, tmp_path_factory.mktemp("step"), **LAYOUTS[layout])

    return run


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def results(family: str, by_layout: Callable[[str], list[list[StepResult]]]) -> Results:
    number = list(FAMILIES).index(family)
    return lambda layout: dict(zip(CASES[layout], by_layout(layout)[number], strict=True))


@pytest.fixture(scope="module")
def expected(results: Results) -> StepResult:
    """On one rank, in one micro-batch: what all others are compared to."""
    return results("one rank")["expected"]


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


def assert_same_table(found: StepResult, expected: StepResult) -> None:
    """One of the ranks that share a copy of the model hands each sample over, with the same numbers."""
    assert sum(map(len, found.tables)) == len(found.table) == len(expected.table) == 16
    for name, sample in expected.table.items():
        for column in fields(TokenColumns):
            ours, theirs = (getattr(s.columns, column.name) for s in (found.table[name], sample))
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4, err_msg=f"{name}: {column.name}")


def assert_differs(found: StepResult, expected: StepResult) -> None:
    """Far beyond what the comparison allows, so that it would have been noticed."""
    assert differences(found, expected)[1] > 100 * GRADIENT_TOLERANCE


def test_the_sets_are_clear_of_round_off(family: str) -> None:
    models, samples = job(family, "one rank").models, job(family, "one rank").samples
    model = AutoModelForCausalLM.from_pretrained(models.hf, dtype=torch.float64)
    gaps = []
    for s in samples:
        for prompt in (s.prompt_ids, *s.teacher_prompt_ids):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + s.response_ids])).logits[0, len(prompt) - 1 : -1] / s.temperature
            top = logits.topk(5).values
            gaps.append(float((top[:, 3] - top[:, 4]).min()))
    assert min(gaps) > TOPK_GAP


@pytest.mark.parametrize(
    ("layout", "name"), [("one rank", "four"), ("one rank", "general, scored"), ("DP2", "scored"), ("TP2 x DP2", "sequence")]
)
def test_the_table_of_tokens_is_the_same_however_the_batch_is_split(
    results: Results, expected: StepResult, layout: str, name: str
) -> None:
    assert_same_table(results(layout)[name], expected)


def test_micro_batches_change_nothing(results: Results, expected: StepResult) -> None:
    found = results("one rank")
    assert expected.micro_batches == [1]
    assert found["four"].micro_batches == found["4 x 4"].micro_batches == [4]
    for name in ("four", "4 x 4"):
        assert_equal(found[name], expected)
    assert_equal(found["four, drawn"], found["expected, drawn"])
    assert_differs(found["expected, drawn"], expected)
    assert_differs(found["local mean"], expected)


def test_cheap_forms_equal_the_general_form(results: Results, expected: StepResult) -> None:
    found = results("one rank")
    for name in ("general", "scored", "general, scored"):
        assert_equal(found[name], expected)
    assert_differs(found["other policy"], expected)


def test_recomputation_changes_nothing(results: Results, expected: StepResult) -> None:
    assert_equal(results("one rank")["recomputed"], expected)


def test_data_parallel(results: Results, expected: StepResult) -> None:
    found = results("DP2")
    assert found["four"].micro_batches[0] == found["four"].micro_batches[1]
    for name in ("four", "scored"):
        assert_equal(found[name], expected)
    assert_equal(found["four, drawn"], results("one rank")["expected, drawn"])
    for name in ("no reduction", "local mean"):
        assert_differs(found[name], expected)


def test_tensor_parallel(results: Results, expected: StepResult) -> None:
    found = results("TP2")
    for name in ("plain", "general, scored", "sequence", "sequence, recomputed"):
        assert_equal(found[name], expected)
    for name in ("no sum over vocabulary", "unmarked norms", "unsummed positions"):
        assert_differs(found[name], expected)
    assert found["unmarked shards"].grad_norm < 0.9 * expected.grad_norm


def test_tensor_and_data_parallel(results: Results, expected: StepResult) -> None:
    found = results("TP2 x DP2")
    for name in ("plain", "sequence"):
        assert_equal(found[name], expected)
    assert_differs(found["no reduction"], expected)
