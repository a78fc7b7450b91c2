"""A rank as a Ray actor, for test_checkpoint_hosts.py: two of them share a model, each on a host of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openclaw_core.trainer.retention import CheckpointInfo
from tests.integration.checkpoint_child import Answer, Trainee, join, regroup, seed


class Rank:
    """TP2, bf16, megatron's DistributedOptimizer."""

    def __init__(self, rank: int, port: int, hf: Path) -> None:
        join(rank, 2, port)
        self._hf = hf
        self._trainee: Trainee

    def begin(self, start: Path) -> None:
        """The same weights on both ranks, by way of a checkpoint that was not split."""
        Trainee(self._hf, "bf16", distributed=True).save(start)
        regroup(2)
        self._fresh().load(start)
        seed()

    def go_on(self, steps: int) -> Answer:
        return self._trainee.go_on(steps)

    def write(self, directory: Path, host: str) -> CheckpointInfo:
        from openclaw_core.trainer import checkpoint

        trainee = self._trainee
        return checkpoint.write(directory, trainee.spec, trainee.gpt, trainee.optimizer, host=host)

    def load(self, directory: Path, info: CheckpointInfo, stores: dict[str, Any]) -> Answer:
        from openclaw_core.trainer import checkpoint
        from openclaw_core.trainer.parts import fetch_from

        trainee, fetch = self._fresh(), fetch_from(stores, deadline_s=60)
        return checkpoint.load(directory, trainee.spec, trainee.gpt, trainee.optimizer, info=info, fetch=fetch)

    def _fresh(self) -> Trainee:
        self._trainee = Trainee(self._hf, "bf16", distributed=True, fresh=True)
        return self._trainee
