"""A driver that trains the recorded steps of a run that are left, as the loop does, and may die on the way.

Usage: python -m tests.integration.learner_child RUN_DIR RAY_ADDRESS SAVE_AT KILL_AFTER

SAVE_AT: step after which a checkpoint is written, 0: none. KILL_AFTER: step after whose record the driver sends itself
SIGKILL, 0: none. Prints the checksum of the last weights.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import ray

from openclaw_core.ledger import Ledger
from openclaw_core.log import configure_logging
from openclaw_core.loop.learner import Learner
from openclaw_core.rundir import RunDir
from tests.integration.learning import samples_of


async def main(run_dir: str, save_at: int, kill_after: int) -> None:
    run = RunDir(Path(run_dir))
    config, ledger = run.config(), Ledger(run.ledger_file)
    samples = samples_of(config, ledger)
    learner = Learner(config, run, ledger, samples)
    version = await learner.restore()
    for record in ledger.steps():
        if record.version is None:
            batch = samples(record)
            await learner.train(record.step, batch, {}, await learner.scores(batch))
            version += 1
            ledger.record_training(record.step, version, skipped=False, metrics={})
            learner.recorded()
            if record.step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            await learner.published(await learner.weights(), version)
            if record.step == save_at:
                await learner.save(record.step, version)
    sys.stdout.write((await learner.weights()).checksum + "\n")
    learner.stop()


if __name__ == "__main__":
    configure_logging()
    ray.init(address=sys.argv[2], log_to_driver=False)
    asyncio.run(main(sys.argv[1], int(sys.argv[3]), int(sys.argv[4])))
