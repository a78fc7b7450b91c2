"""The training service: one asyncio process that holds loop, ledger, judge, gateway and control API (a Ray job's driver).

Trainer and engine are Ray actors; the feeder and the driver of the steps are clients of its two HTTP ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import ray
import structlog
import uvicorn
from fastapi import FastAPI

from openclaw_core.cluster.liveness import Liveness
from openclaw_core.config import RunConfig
from openclaw_core.config.env import WEBHOOK
from openclaw_core.engines.router import Router, SlotState
from openclaw_core.engines.start import engine_starts
from openclaw_core.errors import OpenClawError
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.app import KEEP_ALIVE_S, create_app
from openclaw_core.gateway.chat import GatewayDeps
from openclaw_core.gateway.counts import advice
from openclaw_core.gateway.metrics import Reading
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.health.webhook import Webhook
from openclaw_core.judge import build_judge
from openclaw_core.judge.own_servers import JudgeServers
from openclaw_core.keys import KeyFile
from openclaw_core.ledger import Ledger
from openclaw_core.loop.control import ServiceState, create_control_app
from openclaw_core.loop.intake import Intake
from openclaw_core.loop.judge_readings import judge_readings
from openclaw_core.loop.learner import Learner
from openclaw_core.loop.loop import Loop
from openclaw_core.loop.phases import PhaseRunner
from openclaw_core.rundir import RunDir
from openclaw_core.weights.layout import hf_directory

log = structlog.get_logger(__name__)


class ServiceError(OpenClawError):
    """The service cannot start; the message says why and which setting to change."""


async def serve(run: RunDir) -> None:
    """Run the service until POST /shutdown or SIGTERM. The control API answers from the start; the rest when loaded."""
    config, keys = run.config(), run.secrets()
    state = ServiceState(run.run_id, config.train.steps, config.rollout.batch_size, keys.control_token)
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, state.shutdown.set)
    control = create_control_app(state, run.export)
    async with serving(control, config, "control"), contextlib.AsyncExitStack() as stack:
        app = await _assemble(config, run, state, stack)
        await stack.enter_async_context(serving(app, config, "gateway"))
        log.info("service_ready", run=run.run_id, gateway=config.ports.gateway, control=config.ports.control)
        await state.shutdown.wait()
        log.info("service_stopping", run=run.run_id)
        loop, phases = state.ready()
        await phases.finish()
        await loop.checkpoint()


async def _assemble(config: RunConfig, run: RunDir, state: ServiceState, stack: contextlib.AsyncExitStack) -> FastAPI:
    """Start the parts, bring them to where the ledger stands, and return the gateway's app."""
    hf_dir = hf_directory(config)
    if not ray.is_initialized():
        ray.init(address="auto")
    ledger = Ledger(run.ledger_file)
    stack.callback(ledger.close)
    renderer = ChatRenderer.from_pretrained(hf_dir)
    router = Router(
        engine_starts(config, run, hf_dir),
        wait_s=config.rollout.hold_max_s,
        weights_again=lambda version: loop.weights_again(version),
    )
    stack.push_async_callback(router.close)
    state.engines = router.status
    starting = asyncio.create_task(router.start())  # while the trainer starts
    stack.callback(starting.cancel)

    strict = config.rollout.max_staleness == 0
    room = WaitingRoom(
        hold_max_s=config.rollout.hold_max_s,
        hold_max_requests=config.rollout.hold_max_requests,
        batch_size=config.rollout.batch_size if strict else None,
        occupancy=lambda: loop.occupancy,
    )
    label = config.judge.hint_label
    servers = JudgeServers(config, run) if config.judge_servers else None
    if servers is not None:
        stack.push_async_callback(servers.stop)
    keys = run.secrets()
    judge = build_judge(config, keys.server_key if servers is not None else keys.external_keys.get("judge"))
    intake = Intake(ledger, judge, room.notify, config, lambda hint: renderer.hint_ids(hint, label))
    stack.push_async_callback(intake.stop)
    learner = state.learner = Learner(config, run, ledger, lambda record: loop.samples(record))
    stack.callback(learner.stop)
    loop = Loop(config, run, ledger, intake, room, learner, router, lambda hint: renderer.hint_ids(hint, label))
    if (address := keys.external_keys.get(WEBHOOK)) is not None:
        webhook = Webhook(address, config.health, run.run_id)
        stack.push_async_callback(webhook.finish)
        loop.tell_health = webhook.tell
    await learner.restore()
    await starting
    await loop.resume()
    state.loop, state.phases = loop, PhaseRunner(loop)
    stack.callback(state.end)  # before the parts that /status asks are gone, also where the gateway cannot listen
    deps = GatewayDeps(config, KeyFile(run), renderer, router, room, intake)
    app = create_app(deps, ledger.waiting(), [*_readings(loop, router), *judge_readings(intake.judge)])
    liveness = _watch_hosts(config, stack)
    state.advice = lambda: (
        (liveness and liveness.alert)
        or (servers and servers.alert)
        or intake.judge.outage.alert
        or advice(app.state.sessions.counts)
    )
    return app


def _watch_hosts(config: RunConfig, stack: contextlib.AsyncExitStack) -> Liveness | None:
    """Of a run on hosts of its own."""
    if not config.cluster.containers:
        return None
    liveness = Liveness(config.cluster)
    stack.push_async_callback(liveness.stop)
    return liveness


def _readings(loop: Loop, router: Router) -> list[Reading]:
    """Of the parts behind the gateway, for /metrics."""
    batch = {"ready": lambda: loop.intake.ready, "judging": lambda: loop.intake.judging, "waiting": lambda: loop.intake.waiting}
    return [
        Reading("openclaw_weight_version", "Version of the weights that are served.", lambda: {"": loop.version}),
        Reading(
            "openclaw_turns", "Turns on their way to a batch.", lambda: {name: read() for name, read in batch.items()}, "state"
        ),
        Reading(
            "openclaw_engine_ready",
            "Whether an engine can be asked.",
            lambda: {slot.name: float(slot.state is SlotState.READY) for slot in router.slots},
            "engine",
        ),
        Reading(
            "openclaw_engine_restarts",
            "How often an engine was started again.",
            lambda: {slot.name: slot.restarts for slot in router.slots},
            "engine",
            counts_up=True,
        ),
        Reading("openclaw_publishes", "Publishes.", lambda: {"": loop.publisher.publishes}, counts_up=True),
        Reading(
            "openclaw_publish_seconds", "In which nothing was sampled.", lambda: {"": loop.publisher.seconds}, counts_up=True
        ),
    ]


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: the service has one for both servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: FastAPI, config: RunConfig, name: Literal["gateway", "control"]) -> AsyncIterator[None]:
    """Serve ``app`` on ports.<name> for the block's duration. Raises ServiceError if the port cannot be had."""
    host, port = config.gateway.host, getattr(config.ports, name)
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise ServiceError(f"cannot listen on {host}:{port} ({error.strerror}); set another port with ports.{name}") from error
    server = _Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5, timeout_keep_alive=KEEP_ALIVE_S))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
