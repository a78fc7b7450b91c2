"""The owned process: started by the project's command line, polled, ended by its recorded pid."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from openclaw_core.cluster.places import Here
from openclaw_core.cluster.processes import Processes
from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.sglang.command import ServerCommand, engine_command
from openclaw_core.engines.sglang.server import SGLangServer
from tests.ports import free_ports
from tests.sglang_contract.conftest import contract_config, contract_launcher
from tests.sglang_contract.contract import VERSIONS


def _server(command: ServerCommand, port: int, run: Path, grace_s: float = 20) -> SGLangServer:
    url = f"http://127.0.0.1:{port}"
    return SGLangServer(
        "sglang-0", command, url=url, place=Here(run / "processes"), log_file=run / "logs/sglang-0.log", grace_s=grace_s
    )


async def test_a_server_that_ends_at_its_start_is_reported_with_its_log(tmp_path: Path, tiny_llama_dir: Path) -> None:
    port = free_ports()["ports.gateway"]
    config = contract_config(port, ("--no-such-flag",))
    server = _server(engine_command(config, tiny_llama_dir, launcher=contract_launcher(VERSIONS[0])), port, tmp_path)
    await server.start()
    with pytest.raises(EngineError, match="has ended before it served") as raised:
        await server.wait_ready(60)
    assert "unrecognized arguments: --no-such-flag" in str(raised.value)
    await server.stop()


async def test_a_server_that_ignores_sigterm_is_killed_and_one_that_never_serves_is_given_up(tmp_path: Path) -> None:
    stubborn = ServerCommand(("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"), {})
    server = _server(stubborn, free_ports()["ports.gateway"], tmp_path, 0.5)
    await server.start()
    started = Processes(tmp_path / "processes").find("sglang-0")
    assert started is not None
    try:
        with pytest.raises(EngineError, match=r"does not serve 1\.5 s after its start"):
            await server.wait_ready(1.5)
    finally:
        assert await server.stop()
    assert not psutil.pid_exists(started.pid)
