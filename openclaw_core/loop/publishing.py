"""New weights for the engines, without a user noticing."""

from __future__ import annotations

import time

import structlog

from openclaw_core.config.training import RolloutConfig
from openclaw_core.engines.protocol import Engine
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.weights.publish import PublishedWeights

log = structlog.get_logger(__name__)


class Publisher:
    """Stops the engines for as long as they take new weights; meanwhile requests wait in the gateway."""

    def __init__(self, room: WaitingRoom, engine: Engine, rollout: RolloutConfig) -> None:
        self._room, self._engine, self._rollout = room, engine, rollout
        self.publishes = 0
        self.seconds = 0.0
        """In which nothing was sampled, of all publishes together."""

    async def publish(self, weights: PublishedWeights, version: int) -> None:
        """Serve ``version``. Answers in the making end first (on_publish: drain) or go on with the new weights.

        Raises EngineError. Users go on waiting for the retry then: engines with other weights than the ledger's answer nobody.
        """
        started = time.monotonic()
        self._room.pause()
        if self._rollout.on_publish == "drain" and not await self._room.emptied(self._rollout.drain_max_s):
            log.info("drain_ended", in_flight=self._room.in_flight, seconds=self._rollout.drain_max_s)
        await self._engine.pause()
        await self._engine.load_weights(weights, version, weights.checksum)
        await self._engine.resume()
        self._room.resume()
        self.publishes, self.seconds = self.publishes + 1, self.seconds + time.monotonic() - started
