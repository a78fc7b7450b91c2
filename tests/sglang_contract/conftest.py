"""The servers of this package's tests."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.cluster.places import Here
from openclaw_core.config import RunConfig, load_config
from openclaw_core.engines.sglang.client import SGLangEngine
from openclaw_core.engines.sglang.command import ServerAt, ServerKey, engine_command
from openclaw_core.engines.sglang.server import SGLangServer
from tests.ports import free_ports
from tests.serving import serving_app
from tests.sglang_contract.app import ContractServer
from tests.sglang_contract.contract import VERSIONS, Contract
from tests.sglang_contract.frontend import Frontend
from tests.sglang_contract.model import TinyModel
from tests.sglang_contract.scheduler import Scheduler
from tests.sglang_contract.world import DEADLINES, REAL_URL, World

KEY = "sk-contract"


def contract_config(port: int, extra_args: tuple[str, ...] = ()) -> RunConfig:
    """A run whose engine is SGLang on a CPU."""
    overrides = {
        "engine.backend": "sglang",
        "engine.dtype": "fp32",
        "engine.sglang.device": "cpu",
        "engine.sglang.port": port,
        "engine.sglang.extra_args": list(extra_args),
        "model.context_length": 512,
    }
    return load_config("local-cpu", overrides)


def contract_launcher(version: str, *own: str) -> tuple[str, ...]:
    """Starts the contract server in place of ``sglang.launch_server``."""
    return (sys.executable, "-W", "ignore", "-m", "tests.sglang_contract", "--contract", version, *own)


@pytest.fixture(scope="session", params=["real"] if REAL_URL else VERSIONS)
def world(request: pytest.FixtureRequest, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server in a process of its own, started by the project's own command line; or the real one."""
    if REAL_URL:
        yield World.of(
            REAL_URL,
            Path(os.environ["OPENCLAW_SGLANG_MODEL"]),
            api_key=os.environ.get("OPENCLAW_SGLANG_KEY"),
            backend=os.environ.get("OPENCLAW_SGLANG_BACKEND", "gloo"),
            tolerance=0.1,
        )
        return
    run = tmp_path_factory.mktemp("sglang-run")
    key = ServerKey(KEY, run / "sglang-0.yaml")
    port = free_ports()["ports.gateway"]
    command = engine_command(
        contract_config(port, ("--max-running-requests", "16")),
        tiny_llama_dir,
        version=3,
        at=ServerAt(key=key),
        launcher=contract_launcher(request.param),
    )
    url = f"http://127.0.0.1:{port}"
    server = SGLangServer("sglang-0", command, url=url, place=Here(run / "processes"), log_file=run / "sglang-0.log", key=key)
    asyncio.run(server.start())
    try:
        asyncio.run(server.wait_ready(120))
        yield World.of(url, tiny_llama_dir, api_key=KEY, backend="gloo", tolerance=1e-4)
    finally:
        asyncio.run(server.stop())


@pytest.fixture
async def engine(world: World) -> AsyncIterator[SGLangEngine]:
    """A client of the session's server."""
    connected = await world.connect()
    yield connected
    await connected.close()


@dataclass
class Inside:
    """A contract server in the test's own process and event loop, so that a test can look into it."""

    url: str
    version: str
    server: ContractServer

    @property
    def scheduler(self) -> Scheduler:
        return self.server.scheduler

    async def connect(self, **options: Any) -> SGLangEngine:
        return await SGLangEngine.connect(self.url, backend="gloo", deadlines=DEADLINES, **{"silence_s": 30, **options})


Serve = Callable[..., Awaitable[Inside]]


@pytest.fixture(scope="session")
def tiny_model(tiny_llama_dir: Path) -> TinyModel:
    """Shared by the servers inside the tests' process: no test changes its weights."""
    return TinyModel(tiny_llama_dir)


@pytest.fixture(params=VERSIONS)
async def serve(request: pytest.FixtureRequest, tiny_model: TinyModel) -> AsyncIterator[Serve]:
    """Starts contract servers inside the test: ``await serve(max_queued=2, ...)``."""

    async def start(
        *,
        incremental: bool = False,
        max_running: int = 16,
        max_queued: int | None = None,
        api_key: str | None = None,
        step_s: float = 0.0,
        context_length: int = 512,
        **settings: Any,
    ) -> Inside:
        shown = {"model_path": "tiny", "weight_version": "3", "tp_size": 1, "grammar_backend": "none", "api_key": api_key}
        shown |= settings
        scheduler = Scheduler(
            tiny_model,
            context_length=context_length,
            max_running=max_running,
            max_queued=max_queued,
            version=lambda: shown["weight_version"],
            step_s=step_s,
        )
        contract = Contract.load(request.param)
        frontend = Frontend(contract, scheduler, context_length=context_length, incremental=incremental)
        server = ContractServer(contract, frontend, shown)
        return Inside(await running.enter_async_context(serving_app(server.app())), request.param, server)

    async with AsyncExitStack() as running:
        yield start
