"""One rank of test_publish.py: a distributed optimiser that gathers parameters when the next forward pass needs them.

Usage: python -m tests.integration.overlap_child RUN_DIR RANK WORLD_SIZE PORT. Prints as JSON the checksums of the weights after
one step: "plain" without overlap; with it, "lazy" as they lie there, and "published".
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from openclaw_core.ledger import Ledger
from openclaw_core.rundir import RunDir
from openclaw_core.trainer.worker import TrainerWorker
from openclaw_core.weights.layout import hf_directory, torch_dist_directory
from tests.children import tcp_store
from tests.integration.learning import samples_of


def main(directory: str, rank: str, world_size: str, port: str) -> None:
    run = RunDir(Path(directory))
    config = run.config()
    ledger = Ledger(run.ledger_file)
    (record,) = ledger.steps()
    samples = samples_of(config, ledger)(record)
    hf, base = str(hf_directory(config)), str(torch_dist_directory(config))

    def trained(worker: TrainerWorker) -> TrainerWorker:
        worker.build(hf, base)
        assert not any(worker.train(1, samples, {}, None).skipped)
        return worker

    def checksum(worker: TrainerWorker) -> str | None:
        publication = worker.weights()
        return publication and publication.checksum

    worker = TrainerWorker(config.model_dump_json(), hf, int(rank), int(world_size))
    worker.store = tcp_store(world_size, port)
    worker.join(None, tensor_parallel=1, threads=1)
    answer: dict[str, Any] = {"plain": checksum(trained(worker))}

    from megatron.core import distributed

    from openclaw_core.trainer import gather

    overlapping = functools.partial(distributed.DistributedDataParallelConfig, overlap_param_gather=True)
    with mock.patch.object(distributed, "DistributedDataParallelConfig", overlapping):
        trained(worker)
    with mock.patch.object(gather, "sync_parameters"):
        answer["lazy"] = checksum(worker)
    answer["published"] = checksum(worker)
    # Training goes on: what was gathered early is not gathered again, and the next step's parameters are.
    assert not any(worker.train(2, samples, {}, None).skipped)
    answer["next"] = checksum(worker)
    sys.stdout.write("\n" + json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
