"""`openclaw-rl feed`: simulated people for a run's gateway, or for any other."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openclaw_core.cli_options import AsJson, Assignments, Preset, asked_config
from openclaw_core.cli_output import print_json

if TYPE_CHECKING:
    import asyncio

    from openclaw_core.feeder import FeederSummary
    from openclaw_core.rundir import RunDir

RunDirectory = Annotated[Path | None, typer.Option("--run-dir", metavar="DIR", help="Feed this run, runs/<run id>.")]
Url = Annotated[str | None, typer.Option(metavar="URL", help="Feed any OpenAI-compatible gateway; ends in /v1.")]
KeyFile = Annotated[Path | None, typer.Option(metavar="FILE", help="With --url: a file that holds its API key.")]
PositionFile = Annotated[Path | None, typer.Option(metavar="FILE", help="With --url: where the place in the problems is kept.")]
Feeding = Callable[["asyncio.Event"], Coroutine[Any, Any, "FeederSummary"]]


def feed(
    run_dir: RunDirectory = None,
    url: Url = None,
    key_file: KeyFile = None,
    position_file: PositionFile = None,
    preset: Preset = "local-cpu",
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Let simulated people use a gateway.

    A run's until it has finished, or any other (--url, and --preset and --set with it) until feeder.epochs are over. SIGTERM
    and Ctrl-C end both at once. What was done is told at the end.
    """
    import asyncio

    from openclaw_core.log import configure_logging
    from openclaw_core.rundir import RunDir

    configure_logging()
    if (run_dir is None) == (url is None):
        raise typer.BadParameter("give either --run-dir or --url")
    if run_dir is not None:
        if key_file or position_file or assignments:
            raise typer.BadParameter("--key-file, --position-file and --set belong to --url: a run has its own configuration")
        feeding = _of_run(RunDir(run_dir))
    elif url is None or key_file is None:
        raise typer.BadParameter("--url needs --key-file")
    else:
        feeding = _of_gateway(url, key_file, position_file, preset, assignments)
    done = asyncio.run(_stoppable(feeding)).as_json()
    if as_json:
        print_json(done)
        return
    for name, value in done.items():
        typer.echo(f"{name}: {value}")


def _of_run(run: RunDir) -> Feeding:
    from openclaw_core.feeder import run_feeder

    config, keys = run.config(), run.secrets()
    gateway, control = (f"http://{config.gateway.host}:{port}" for port in (config.ports.gateway, config.ports.control))
    simulator_key = keys.external_keys.get("simulator")
    return lambda stop: run_feeder(config, f"{gateway}/v1", keys.api_key, control, keys.control_token, stop, simulator_key)


def _of_gateway(url: str, key_file: Path, position_file: Path | None, preset: str, assignments: list[str] | None) -> Feeding:
    from openclaw_core.config.env import external_keys
    from openclaw_core.feeder import feed_gateway
    from openclaw_core.rundir import read_key

    config = asked_config(preset, assignments)
    key, simulator_key = read_key(key_file), external_keys().get("simulator")
    return lambda stop: feed_gateway(config, url, key, stop, simulator_key, position_file)


async def _stoppable(feeding: Feeding) -> FeederSummary:
    """``feeding``, told by SIGTERM and SIGINT to stop."""
    import asyncio
    import signal

    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    return await feeding(stop)
