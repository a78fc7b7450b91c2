"""`openclaw-rl feed`: simulated people for a run's gateway, or for any other."""

# Heavy imports stay inside the commands, so that --help is quick.
from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openclaw_core.config.env import external_keys, load_asked
from openclaw_core.config.load import parse_assignment
from openclaw_core.log import configure_logging
from openclaw_core.rundir import RunDir, read_key

if TYPE_CHECKING:
    from openclaw_core.feeder import FeederSummary

RunDirectory = Annotated[Path | None, typer.Option("--run-dir", help="Feed this run, runs/<run id>.")]
Url = Annotated[str | None, typer.Option(help="Feed any OpenAI-compatible gateway; ends in /v1.")]
KeyFile = Annotated[Path | None, typer.Option(help="With --url: a file that holds its API key.")]
PositionFile = Annotated[Path | None, typer.Option(help="With --url: where the place in the problems is kept.")]
Preset = Annotated[str, typer.Option(help="With --url: local-cpu, 4b-2nodes or 32b-8nodes.")]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="With --url: override a parameter, as model.name=mine.")]


def feed(
    run_dir: RunDirectory = None,
    url: Url = None,
    key_file: KeyFile = None,
    position_file: PositionFile = None,
    preset: Preset = "local-cpu",
    assignments: Assignments = None,
) -> None:
    """Simulated people who use a gateway: a run's until it has finished, any other until feeder.epochs are over.

    SIGTERM ends both at once. The last line is what was done, as JSON.
    """
    configure_logging()
    if (run_dir is None) == (url is None):
        raise typer.BadParameter("give either --run-dir or --url")
    if run_dir is not None:
        if key_file or position_file or assignments:
            raise typer.BadParameter("--key-file, --position-file and --set belong to --url: a run has its own configuration")
        summary = _of_run(RunDir(run_dir))
    elif url is None or key_file is None:
        raise typer.BadParameter("--url needs --key-file")
    else:
        summary = _of_gateway(url, key_file, position_file, preset, assignments or [])
    typer.echo(json.dumps(summary.as_json()))


def _of_run(run: RunDir) -> FeederSummary:
    from openclaw_core.feeder import run_feeder

    config, keys, stop = run.config(), run.secrets(), asyncio.Event()
    gateway, control = (f"http://{config.gateway.host}:{port}" for port in (config.ports.gateway, config.ports.control))
    simulator_key = keys.external_keys.get("simulator")
    feeding = run_feeder(config, f"{gateway}/v1", keys.api_key, control, keys.control_token, stop, simulator_key)
    return asyncio.run(_stoppable(feeding, stop))


def _of_gateway(url: str, key_file: Path, position_file: Path | None, preset: str, assignments: list[str]) -> FeederSummary:
    from openclaw_core.feeder import feed_gateway

    asked = load_asked(preset, dict(parse_assignment(text) for text in assignments))
    for line in asked.told:
        typer.echo(f"from the environment: {line}", err=True)
    key, simulator_key, stop = read_key(key_file), external_keys().get("simulator"), asyncio.Event()
    return asyncio.run(_stoppable(feed_gateway(asked.config, url, key, stop, simulator_key, position_file), stop))


async def _stoppable(feeding: Coroutine[Any, Any, FeederSummary], stop: asyncio.Event) -> FeederSummary:
    """``feeding``, told by SIGTERM and SIGINT to stop."""
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    return await feeding
