"""One rank of a scorer: a forward-only copy of the policy, and of the start model where it is needed.

A Ray actor's class. What imports megatron is imported inside the methods: the process is prepared for it by ``join``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog
import torch

from openclaw_core.scorer.score import Score
from openclaw_core.trainer.errors import TrainerError
from openclaw_core.trainer.rank import Rank
from openclaw_core.types import Sample
from openclaw_core.weights.shared import SharedWeights

log = structlog.get_logger(__name__)


class ScorerWorker(Rank):
    """See the module's docstring. It scores with the version that it was given last."""

    def build(self, hf_dir: str, base_checkpoint: str) -> None:
        """Make the models, with the start model's weights: version 0."""
        from openclaw_core.scorer.scoring import Scorer
        from openclaw_core.trainer.builder import build_model, response_head

        self.at("build the model")
        config, start = self.config, None
        _, self.gpt, policy = build_model(self.spec, config, self.accelerator, Path(base_checkpoint))
        policy.requires_grad_(False)
        if Scorer.needs_start(config):
            _, _, start = build_model(self.spec, config, self.accelerator, Path(base_checkpoint))
            start.requires_grad_(False)
        multiple = self.world_size if config.train.sequence_parallel else 1
        head = response_head(self.spec, config)
        self.scorer = Scorer(policy, start, head, config, device=self.accelerator.device, multiple=multiple)
        self.version = 0
        self.at("ready")
        log.info("scorer_ready", rank=self.rank, teacher=config.teacher.mode)

    def reaches(self, weights: SharedWeights) -> bool:
        """Whether the trainer's shared memory can be read from here."""
        return weights.reachable()

    def load_weights(self, weights: SharedWeights | Mapping[str, Any], version: int, checksum: str) -> None:
        """Take a published version (HF names). Raises TrainerError where its checksum is another."""
        from openclaw_core.weights.arrays import reading
        from openclaw_core.weights.checksum import checksum as checksum_of
        from openclaw_core.weights.names import to_megatron

        self.at(f"load version {version}")
        with reading(weights) as tensors, torch.no_grad():
            if self.rank == 0 and (found := checksum_of(tensors.items())) != checksum:
                raise TrainerError(
                    f"the scorer got version {version} with checksum {found}, published was {checksum}; "
                    f"it still has {self.version}"
                )
            shards = to_megatron(tensors.__getitem__, self.spec, self.world_size, self.rank)
            for name, parameter in self.gpt.named_parameters():
                parameter.copy_(shards[name])
        self.version = version
        self.at("ready")

    def score(self, samples: list[Sample]) -> list[Score]:
        """The scores of some samples with the version that is loaded; the same on every rank."""
        self.at(f"score {len(samples)} samples")
        scores = [self.scorer.score(sample, self.version) for sample in samples]
        self.at("ready")
        return scores
