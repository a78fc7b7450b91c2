"""Trainer and scorer as groups of real Ray actors: scores by version, any split, and a stuck rank that is named."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openclaw_core.ledger import Ledger
from openclaw_core.loop.learner import Learner
from openclaw_core.rundir import RunDir
from openclaw_core.scorer.group import ScorerGroup
from openclaw_core.trainer.group import RankLost, TrainerGroup
from openclaw_core.types import Sample
from openclaw_core.weights.layout import hf_directory, torch_dist_directory
from tests.integration.learning import record_batches, samples_of, tiny_run

STUCK_S = 60
"""A rank that does not move must be named within this time."""


pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    directory = tmp_path_factory.mktemp("ranks")
    run = tiny_run(directory, loss__kl_coef=0.1, scorer__placement="separate", scorer__data_parallel=2)
    record_batches(Ledger(run.ledger_file), 3)
    return run


@pytest.fixture(scope="module")
def batches(run: RunDir) -> list[list[Sample]]:
    ledger = Ledger(run.ledger_file)
    return [samples_of(run.config(), ledger)(record) for record in ledger.steps()]


def unhinted(samples: list[Sample]) -> list[Sample]:
    """Others, with hints of no tokens: teacher and old policy see the same context."""
    return [replace(s, sample_id=f"{s.sample_id}, unhinted", teacher_prompt_ids=(s.prompt_ids,), hints=("",)) for s in samples]


async def test_scores_follow_the_policy_and_so_does_an_on_policy_teacher_but_not_a_frozen_one(
    run: RunDir, batches: list[list[Sample]]
) -> None:
    config = run.config()
    directories = hf_directory(config), torch_dist_directory(config)
    frozen_config = config.model_copy(update={"teacher": config.teacher.model_copy(update={"mode": "frozen"})})
    trainer, scorer, frozen = await asyncio.gather(
        TrainerGroup.start(config, *directories, run.checkpoints),
        ScorerGroup.start(config, *directories),
        ScorerGroup.start(frozen_config, *directories),
    )
    try:
        first = await scorer.scores(batches[0])
        for version, samples in enumerate(batches, start=1):
            scores = await scorer.scores(samples)
            assert {score.version for score in scores.values()} == {version - 1}
            result = await trainer.train(version, samples, {}, scores)
            assert not result.skipped
            assert result.metrics["rollout/dropped"] == {}
            weights = await trainer.weights()
            await asyncio.gather(scorer.load_weights(weights, version), frozen.load_weights(weights, version))

        # Scores of another version are made again.
        again = await scorer.scores(batches[0])
        assert set(first) == set(again) == {s.sample_id for s in batches[0]}
        hinted = [s.sample_id for s in batches[0] if s.hints]
        assert (first[hinted[0]].version, again[hinted[0]].version) == (0, len(batches))
        assert np.abs(first[hinted[0]].old_logp - again[hinted[0]].old_logp).max() > 1e-3

        probe = unhinted(batches[0])
        on_policy, start = await scorer.scores(probe), await frozen.scores(probe)
        for sample in probe:
            ours, theirs = on_policy[sample.sample_id], start[sample.sample_id]
            assert np.abs(ours.teacher_logp - ours.old_logp).max() < 1e-5
            assert np.abs(theirs.teacher_logp - theirs.old_logp).max() > 1e-2
            # Both have the policy of the last version as the old one, and the start model as the reference.
            assert np.abs(ours.old_logp - theirs.old_logp).max() < 1e-5
            assert ours.ref_logp is not None and theirs.ref_logp is not None
            assert np.abs(ours.ref_logp - theirs.ref_logp).max() < 1e-5

        # An absent or a broken score masks its sample: it is never a zero.
        broken = again[hinted[0]]
        again[hinted[0]] = replace(broken, teacher_logp=np.full_like(broken.teacher_logp, np.nan))
        del again[hinted[1]]
        result = await trainer.train(len(batches) + 1, batches[0], {}, again)
        assert result.metrics["rollout/dropped"] == {"missing_score": 2}
        assert not result.skipped
    finally:
        for group in (trainer, scorer, frozen):
            group.stop()


async def test_several_optimiser_steps_a_rollout_report_how_far_the_policy_moved(
    run: RunDir, batches: list[list[Sample]]
) -> None:
    tree = run.config().model_dump()
    tree["train"]["steps_per_rollout"], tree["scorer"]["placement"] = 2, "colocated"
    config = type(run.config()).model_validate(tree)
    trainer = await TrainerGroup.start(config, hf_directory(config), torch_dist_directory(config), run.checkpoints)
    try:
        result = await trainer.train(1, batches[0], {})
    finally:
        trainer.stop()
    # The second step's policy is not the old one any more; with one step the metric is absent.
    assert result.metrics["train/ppo_kl"] != 0
    assert result.metrics["train/grpo_clipfrac"] is not None


async def test_a_scorer_that_dies_is_started_again_with_the_present_weights(run: RunDir, batches: list[list[Sample]]) -> None:
    ledger = Ledger(run.ledger_file)
    learner = Learner(run.config(), run, ledger, samples_of(run.config(), ledger))
    try:
        await learner.restore()
        await learner.train(1, batches[0], {}, await learner.scores(batches[0]))
        learner.recorded()
        await learner.published(await learner.weights(), 1)
        assert learner.scorer is not None
        expected = await learner.scorer.scores(batches[1])
        for copy in learner.scorer.copies:
            (pid,) = await copy.call("__ray_call__", lambda _: os.getpid())
            os.kill(pid, signal.SIGKILL)
        found = await learner.scores(batches[2])
        assert found is not None
        again = await learner.scores(batches[1])
    finally:
        learner.stop()
    assert again is not None
    for name, score in expected.items():
        assert again[name].version == 1
        assert np.array_equal(again[name].old_logp, score.old_logp)


async def test_a_stopped_rank_is_named_and_the_learner_goes_on_with_new_ones(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, train__data_parallel=2, train__silence_s=5)
    ledger = Ledger(run.ledger_file)
    record_batches(ledger, 1)
    samples = samples_of(run.config(), ledger)
    (record,) = ledger.steps()
    learner = Learner(run.config(), run, ledger, samples)
    try:
        await learner.restore()
        assert learner.trainer is not None
        ranks = learner.trainer.ranks
        (_, pid) = await ranks.call("__ray_call__", lambda _: os.getpid())
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(
            RankLost, match=r"trainer\.train: no answer from rank 1 for 5 s; rank 0 in 'step 1: .*' for \d+ s; rank 1"
        ):
            await asyncio.wait_for(learner.trainer.train(1, samples(record), {}), STUCK_S)
        result = await learner.train(1, samples(record), {}, None)
        assert not result.skipped
        assert learner.trainer.ranks is not ranks
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        learner.stop()
