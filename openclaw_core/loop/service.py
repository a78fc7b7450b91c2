"""The training service: one asyncio process that holds loop, ledger, judge, gateway and control API (a Ray job's driver).

Trainer and engine are Ray actors; the feeder and the driver of the steps are clients of its two HTTP ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator

import ray
import structlog
import uvicorn
from fastapi import FastAPI

from openclaw_core.config import RunConfig
from openclaw_core.engines.protocol import Engine
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.app import GatewayDeps, create_app
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.ledger import Ledger
from openclaw_core.loop.control import ServiceState, create_control_app
from openclaw_core.loop.intake import Intake
from openclaw_core.loop.loop import Loop
from openclaw_core.loop.phases import PhaseRunner
from openclaw_core.rundir import RunDir

log = structlog.get_logger(__name__)


class ServiceError(RuntimeError):
    """The service cannot start; the message says why and which setting to change."""


async def serve(run: RunDir) -> None:
    """Run the service until POST /shutdown or SIGTERM. The control API answers from the start; the rest when loaded."""
    config, keys = run.config(), run.secrets()
    state = ServiceState(run.run_id, config.train.steps, config.rollout.batch_size, keys.control_token)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, state.shutdown.set)
    control = create_control_app(state, run.export)
    async with _serving(control, config.gateway.host, config.ports.control, "ports.control"):
        async with contextlib.AsyncExitStack() as stack:
            try:
                app = await _assemble(config, run, state, stack)
            except Exception as error:
                state.error = f"{type(error).__name__}: {error}"
                raise
            await stack.enter_async_context(_serving(app, config.gateway.host, config.ports.gateway, "ports.gateway"))
            log.info("service_ready", run=run.run_id, gateway=config.ports.gateway, control=config.ports.control)
            await state.shutdown.wait()
            log.info("service_stopping", run=run.run_id)
            if state.phases is not None:
                await state.phases.finish()


async def _assemble(config: RunConfig, run: RunDir, state: ServiceState, stack: contextlib.AsyncExitStack) -> FastAPI:
    """Start the parts, bring them to where the ledger stands, and return the gateway's app."""
    from openclaw_core.judge import build_judge
    from openclaw_core.trainer.group import TrainerGroup

    model_dir = config.paths.models / config.model.name
    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=True, logging_level="warning")
    renderer = ChatRenderer.from_pretrained(model_dir / "hf")
    ledger = Ledger(run.ledger_file)
    stack.callback(ledger.close)

    trainer = TrainerGroup(config, model_dir / "hf", model_dir / "torch_dist")
    stack.callback(trainer.stop)
    engines = _start_engines(config, model_dir / "hf", stack)

    room = WaitingRoom(
        batch_size=config.rollout.batch_size if config.rollout.max_staleness == 0 else None,
        occupancy=lambda: training.occupancy,
        hold_max_s=config.rollout.hold_max_s,
        hold_max_requests=config.rollout.hold_max_requests,
    )
    intake = Intake(ledger, build_judge(config), on_change=room.notify)
    stack.push_async_callback(intake.stop)
    training = Loop(
        config, run.path, ledger, intake, room, trainer, engines, lambda hint: renderer.hint_ids(hint, config.judge.hint_label)
    )
    await training.restore()
    state.loop, state.phases = training, PhaseRunner(training)
    return create_app(GatewayDeps(config, run.secrets().api_key, renderer, engines[0], room, intake))


def _start_engines(config: RunConfig, hf_dir: object, stack: contextlib.AsyncExitStack) -> list[Engine]:
    from openclaw_core.engines.ray_engine import RayEngine

    engines = [RayEngine.start(config, str(hf_dir), name=f"engine-{i}") for i in range(config.engine.count)]
    for engine in engines:
        stack.callback(engine.stop)
    return list(engines)


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: the service has one for both servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def _serving(app: FastAPI, host: str, port: int, setting: str) -> AsyncIterator[None]:
    """Serve ``app`` on host:port for the block's duration. Raises ServiceError if the port cannot be had."""
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise ServiceError(f"cannot listen on {host}:{port} ({error.strerror}); set another port with {setting}") from error
    server = _Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
