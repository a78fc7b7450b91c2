"""A driver that trains the recorded steps of a run, and sends itself SIGKILL after a step's record.

Usage: python -m tests.integration.learner_child RUN_DIR RAY_ADDRESS SAVE_AT KILL_AFTER, see ``learning.train_recorded``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import ray

from openclaw_core.rundir import RunDir
from tests.integration.learning import train_recorded

if __name__ == "__main__":
    ray.init(address=sys.argv[2], log_to_driver=False)
    asyncio.run(train_recorded(RunDir(Path(sys.argv[1])), save_at=int(sys.argv[3]), kill_after=int(sys.argv[4])))
