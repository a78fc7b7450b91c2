"""The feeder alone: against the gateway of a run that is alive, or against any other OpenAI-compatible gateway."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from prefect import flow

from flows import form
from flows.logs import log_to_prefect
from flows.parameters import keys_of, resolve_config, secret
from openclaw_core.config import ConfigError
from openclaw_core.feeder import FeederSummary, feed_gateway
from openclaw_core.stages import StageResult
from tasks.feeder import feeding


@flow(name="feeder")
def feeder(
    run_dir: str = "",
    url: str = "",
    key: str = "",
    preset: form.Preset = "local-cpu",
    simulator: str = "",
    overrides: form.Overrides = None,
    position_file: str = "",
    minutes: form.Minutes = 10,
) -> StageResult:
    """Feed a gateway until the time is over, the problems are (feeder.epochs), or the flow is cancelled.

    Args:
        run_dir: runs/<run id> of a run that is alive, which has its own configuration and key. Give this or url.
        url: Any OpenAI-compatible gateway; ends in /v1.
        key: With url - name of a Secret block with the gateway's API key.
        preset: With url - personas, problems and the model's name come from it.
        simulator: With url - name of an OpenClaw Simulator block, whose model plays the users.
        overrides: With url - any other parameter by its dotted name, as in {"model.name": "mine"}.
        position_file: With url - where the place in the problems is kept for the next time.
        minutes: How long.
    """
    log_to_prefect()
    if bool(run_dir) == bool(url):
        raise ConfigError("the flow feeder needs either run_dir or url")
    if run_dir:
        with feeding(run_dir) as switch:
            began = time.monotonic()
            switch.on.set()
            switch.over.wait(60 * minutes)
            fed_s = time.monotonic() - began
        return {"stage": "feeder", "status": "done", "detail": f"fed for {fed_s / 60:.1f} minutes"}
    if not key:
        raise ConfigError("url needs key, the name of a Secret block that holds the gateway's API key")
    config = resolve_config(preset, simulator=simulator, overrides=overrides)
    simulator_key = keys_of(simulator).get("simulator")

    async def feed() -> FeederSummary:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(60 * minutes, stop.set)
        place = Path(position_file) if position_file else None
        return await feed_gateway(config, url, secret(key), stop, simulator_key, place)

    summary = asyncio.run(feed())
    told = ", ".join(f"{name} {value}" for name, value in summary.as_json().items())
    return {"stage": "feeder", "status": "done", "detail": told}
