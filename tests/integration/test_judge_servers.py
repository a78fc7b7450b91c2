"""The judge's servers on their host: started by the run through Ray, asked with the run's key, started again where one ends.

The host is a node of Ray on this machine, the server SGLang's contract server, which gives verdicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import ray

from openclaw_core.cluster.pinning import JUDGE
from openclaw_core.cluster.processes import Processes
from openclaw_core.config import load_config
from openclaw_core.judge import Judge, build_judge
from openclaw_core.judge.own_servers import JudgeServers
from openclaw_core.rundir import RunDir, create_run
from tests.integration.sglang_service import ROOT, STAND_IN
from tests.judge_parts import COMPLAINT, TURN
from tests.ports import free_ports
from tests.sglang_contract.contract import VERSIONS

HOSTS = [
    {"name": "a", "roles": ["train", "rollout"], "address": "127.0.0.2"},
    {"name": "b", "roles": ["prm"], "address": "127.0.0.1"},
]


@pytest.fixture(scope="module", autouse=True)
def host_b() -> Iterator[None]:
    """Ray as the container on host b starts it."""
    resources: dict[str, float] = {"host:b": 1000, JUDGE: 1}
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, resources=resources)
    yield
    ray.shutdown()


@pytest.fixture
def run(tmp_path: Path, tiny_llama_dir: Path) -> Callable[..., RunDir]:
    """A run whose judge is the tiny model on host b."""
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "hf").symlink_to(tiny_llama_dir)

    def make(*arguments: str) -> RunDir:
        overrides: dict[str, Any] = {
            "cluster.hosts": HOSTS,
            "paths.runs": str(tmp_path / "runs"),
            "paths.models": str(tmp_path / "models"),
            "judge.client": "sglang",
            "judge.model": "tiny",
            "judge.max_tokens": 200,
            "judge.retries": 0,
            "judge.server.device": "cpu",
            "judge.server.port": free_ports()["ports.gateway"],
            "judge.server.extra_args": ["--contract", VERSIONS[-1], "--judges", *arguments],
            "judge.server.environment": {"PYTHONPATH": f"{STAND_IN}:{ROOT}", "PYTHONWARNINGS": "ignore"},
        }
        return create_run(load_config("2nodes-sim", overrides), "judged")

    return make


@asynccontextmanager
async def serving(run: RunDir) -> AsyncIterator[JudgeServers]:
    servers = JudgeServers(run.config(), run)
    try:
        yield servers
    finally:
        await servers.stop()


async def until(seen: Callable[[], bool], servers: JudgeServers, seconds: float = 120) -> None:
    for _ in range(int(seconds * 10)):
        if seen():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not seen within {seconds:g} s; the servers say: {servers.alert}")


async def verdict(run: RunDir) -> tuple[float, tuple[str, ...]]:
    judge: Judge = build_judge(run.config(), run.secrets().server_key)
    judgement = await judge.judge(TURN, COMPLAINT)
    await judge.close()
    return judgement.reward, judgement.hints


async def test_a_server_is_started_judges_and_is_started_again_when_it_was_killed(
    run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("openclaw_core.judge.own_servers.LOOK_S", 0.2)
    judged = run()
    processes, warm = Processes(judged.processes), (-1, ("Be warm and kind to the pupil.",))
    async with serving(judged) as servers:
        assert servers.alert == "judge-b: it is starting"
        await until(lambda: servers.alert is None, servers)
        assert await verdict(judged) == warm
        first = processes.find("judge-b")
        assert first is not None
        psutil.Process(first.pid).kill()
        await until(lambda: servers.alert is not None, servers)
        assert servers.alert is not None and servers.alert.startswith("judge-b: it has ended and is started again")
        await until(lambda: servers.alert is None, servers)
        assert await verdict(judged) == warm
        second = processes.find("judge-b")
        assert second is not None and second.pid != first.pid
    assert processes.find("judge-b") is None
    assert not psutil.pid_exists(second.pid)


async def test_only_who_has_the_runs_key_is_answered_and_the_key_is_in_no_command_line(run: Callable[..., RunDir]):
    judged = run()
    (url,), key = judged.config().judge_urls, judged.secrets().server_key
    async with serving(judged) as servers, httpx.AsyncClient(base_url=url, trust_env=False) as stranger:
        await until(lambda: servers.alert is None, servers)
        assert (await stranger.get("/server_info")).status_code == 401
        assert (await stranger.get("/server_info", headers={"Authorization": f"Bearer {key}"})).status_code == 200
        process = Processes(judged.processes).find("judge-b")
        assert process is not None
        assert key not in " ".join([*psutil.Process(process.pid).cmdline(), *psutil.Process(process.pid).environ().values()])
    assert (judged.path / "judge-b.yaml").stat().st_mode & 0o077 == 0


async def test_a_server_that_does_not_start_is_told_with_its_log_and_tried_again(run: Callable[..., RunDir]):
    judged = run("--no-such-flag")
    async with serving(judged) as servers:
        await until(lambda: "unrecognized arguments: --no-such-flag" in (servers.alert or ""), servers)
        log = judged.logs / "judge-b.log"
        await until(lambda: log.read_text().count("unrecognized arguments") > 1, servers)
