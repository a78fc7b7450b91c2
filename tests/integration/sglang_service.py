"""A run's real training service whose engine is SGLang's contract server, started by the project's own command line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.loop.client import ControlClient, ServiceStatus, drive_step, phase_deadlines
from openclaw_core.loop.service import serve
from openclaw_core.rundir import RunDir
from tests.integration.learning import tiny_run
from tests.ports import free_ports
from tests.sglang_contract.contract import VERSIONS

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests/sglang_contract/stand_in"
REACTIONS = ("Thank you, that helps!", "That is too short, I need more detail.")
"""The first is good to the scripted judge, the second asks for a change and gives hints."""


@dataclass
class Service:
    """A running service, and what its users and its driver do."""

    run: RunDir
    users: openai.AsyncOpenAI
    control: ControlClient
    engine: httpx.AsyncClient
    """Of the SGLang server itself."""

    @property
    def batch(self) -> int:
        return self.run.config().rollout.batch_size

    async def status(self) -> ServiceStatus:
        return await asyncio.to_thread(self.control.status)

    async def ask(self, session: str, text: str, *, begun: asyncio.Event | None = None, **body: Any) -> str:
        """One turn of one user, without a ``session`` where it is empty; the answer's text.

        Streamed with ``begun``, which is set at the first piece.
        """
        request: Any = {"model": "tiny", "messages": [{"role": "user", "content": text}], **body}
        tags = {"X-Session-Id": session} if session else {}
        request["extra_headers"] = {**tags, **body.get("extra_headers", {})}
        if begun is None:
            completion = await self.users.chat.completions.create(**request)
            assert completion.choices[0].finish_reason in ("stop", "length")
            return completion.choices[0].message.content or ""
        pieces, finished = [], None
        async for chunk in await self.users.chat.completions.create(**request, stream=True):
            if chunk.choices[0].delta.content:
                begun.set()
                pieces.append(chunk.choices[0].delta.content)
            finished = chunk.choices[0].finish_reason or finished
        assert finished in ("stop", "length")
        return "".join(pieces)

    async def conversation(self, name: str, reaction: str, *, stream: bool) -> None:
        """A question, its answer, and how the user found it."""
        begun = asyncio.Event() if stream else None
        await self.ask(name, "How many apples are left of 12 after 5 are eaten?", begun=begun)
        body = {"message": {"role": "user", "content": reaction}}
        closed = await self.users.post(f"/sessions/{name}/close", cast_to=httpx.Response, body=body)
        assert closed.status_code == 200

    async def step(self, number: int) -> dict[str, Any]:
        """One rollout step, driven as `openclaw-rl run` does, with as many conversations as it needs; its results by phase."""
        deadlines = phase_deadlines(self.run.config())
        driving = asyncio.create_task(asyncio.to_thread(drive_step, self.control, number, deadlines))
        talks = [
            self.conversation(f"step-{number}-user-{i}", REACTIONS[i % 2], stream=i < self.batch // 2)
            for i in range(self.batch)
        ]
        await asyncio.gather(driving, *talks)
        return driving.result()

    async def reported(self) -> tuple[str, dict[str, str]]:
        """What the server itself says: weight version, and a checksum of each parameter."""
        info = (await self.engine.get("/model_info")).json()
        checked = (await self.engine.post("/weights_checker", json={"action": "checksum"})).json()
        return info["weight_version"], checked["ranks"][0]["checksums"]

    def server(self) -> OwnedProcess | None:
        """The server's process."""
        return Processes(self.run.processes).find("sglang-0")

    async def restarts(self) -> float:
        """Of the engine, as /metrics tells them."""
        host = self.users.with_options(base_url=f"http://127.0.0.1:{self.run.config().ports.gateway}")
        page = (await host.get("/metrics", cast_to=httpx.Response)).text
        (line,) = [line for line in page.splitlines() if line.startswith('openclaw_engine_restarts_total{engine="engine-0"}')]
        return float(line.split()[-1])


@contextlib.asynccontextmanager
async def serving(directory: Path, arguments: Sequence[str] = (), **overrides: Any) -> AsyncIterator[Service]:
    """The service in this process, on a Ray that is there already, with a tiny model in fp32.

    ``arguments``: of the contract server. ``overrides``: of the configuration, with ``__`` for the dot.
    """
    ports = free_ports()
    port = ports.pop("ports.ray_client")  # not opened by this run
    run = tiny_run(
        directory,
        engine__backend="sglang",
        engine__dtype="fp32",
        engine__sglang__device="cpu",
        engine__sglang__port=port,
        engine__sglang__extra_args=["--contract", VERSIONS[-1], *arguments],
        engine__sglang__environment={"PYTHONPATH": f"{STAND_IN}:{ROOT}", "PYTHONWARNINGS": "ignore"},
        model__context_length=256,
        rollout__max_response_tokens=16,
        **{name.replace(".", "__"): value for name, value in ports.items()},
        **overrides,
    )
    config, keys = run.config(), run.secrets()
    work = asyncio.create_task(serve(run))
    users = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{config.ports.gateway}/v1", api_key=keys.api_key, max_retries=0)
    key = {"Authorization": f"Bearer {keys.server_key}"}
    engine = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=key, trust_env=False, timeout=60)
    with ControlClient.of(run, config) as control:
        async with users, engine:
            service = Service(run, users, control, engine)
            while not (await service.status()).serving:
                assert not work.done(), work.exception()
                await asyncio.sleep(0.1)
            try:
                yield service
            finally:
                await asyncio.to_thread(control.shutdown)
                await work
                assert service.server() is None
