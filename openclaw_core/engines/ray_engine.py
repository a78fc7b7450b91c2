"""An engine in a Ray actor: every call has a deadline, and whatever goes wrong is an EngineError."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.protocol import EngineError, GenerateRequest, Generation

_VERSION_DEADLINE_S = 10.0
"""The version is asked for by health checks; the actor answers it at once whatever it is decoding."""
_CONCURRENT_CALLS = 4096
"""Calls that the actor takes at a time: more than a gateway ever admits; batching is the engine's own affair."""


class RayEngine:
    """An engine (``engines.protocol.Engine``) that forwards to an actor. ``deadline_s``: of one call, queueing included."""

    def __init__(self, actor: Any, name: str, deadline_s: float) -> None:
        self._actor = actor
        self._name = name
        self._deadline_s = deadline_s

    @classmethod
    def start(cls, config: RunConfig, directory: str | Path, name: str = "engine-0") -> RayEngine:
        """Start a LocalEngine with the model in ``directory`` as an actor; it loads while others start too.

        A dead actor is not restarted: it would serve the start weights.
        """
        from openclaw_core.engines.local import LocalEngine

        engine = config.engine
        environment = {"OMP_NUM_THREADS": str(engine.threads), "OMP_WAIT_POLICY": "passive"}
        actor = ray.remote(LocalEngine).options(
            num_cpus=0, max_restarts=0, max_concurrency=_CONCURRENT_CALLS, runtime_env={"env_vars": environment}
        )
        handle = actor.remote(
            str(Path(directory).resolve()),
            dtype=engine.dtype,
            threads=engine.threads,
            max_batch=engine.max_batch,
            batch_window_ms=engine.batch_window_ms,
            context_length=config.model.context_length,
        )
        return cls(handle, name, engine.deadline_s)

    async def generate(self, request: GenerateRequest) -> Generation:
        """See Engine. A call that is cancelled or runs into its deadline is cancelled in the actor too."""
        return await self._call("generate", self._deadline_s, request)

    async def prefill_logprobs(
        self, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...], temperature: float
    ) -> tuple[float, ...]:
        """See Engine."""
        return await self._call("prefill_logprobs", self._deadline_s, prompt_ids, response_ids, temperature)

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        """See Engine. ``weights``: name → tensor, or a reference to that in Ray's object store, bare or in a list.

        A reference is resolved in the actor: the weights do not pass through this process.
        """
        if isinstance(weights, Mapping):
            from openclaw_core.engines.arrays import as_arrays

            weights = as_arrays(weights)
        elif isinstance(weights, list):
            (weights,) = weights
        await self._call("load_weights", self._deadline_s, weights, version, checksum)

    async def version(self) -> int:
        """See Engine."""
        return await self._call("version", _VERSION_DEADLINE_S)

    def stop(self) -> None:
        """End the actor's process."""
        ray.kill(self._actor)

    async def _call(self, method: str, deadline_s: float, *arguments: Any) -> Any:
        reference = getattr(self._actor, method).remote(*arguments)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(reference.future()), deadline_s)
        except TimeoutError:
            ray.cancel(reference)
            raise EngineError(f"{self._name}.{method} did not answer within {deadline_s:g} s (engine.deadline_s)") from None
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, EngineError):
                raise EngineError(f"{self._name}.{method}: {cause}") from None
            raise EngineError(f"{self._name}.{method} failed: {error}") from error
        except RayActorError as error:
            raise EngineError(f"{self._name} is dead: {error}") from error
        except RayError as error:
            raise EngineError(f"{self._name}.{method} failed: {error}") from error
