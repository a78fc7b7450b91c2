"""The whole training service on SGLang: answers, steps whose weights arrive, and an engine that is killed and comes back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from openclaw_core.cli import app
from tests.integration.sglang_service import Service, serving
from tests.sglang_contract.model import TinyModel

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("ray_cluster")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(ray_cluster: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    directory = tmp_path_factory.mktemp("service")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # for a trainer, and nothing for SGLang
        async with serving(directory, ("--step-s", "0.01"), gateway__session_inference="off") as running:
            yield running


async def test_the_server_is_a_process_of_the_runs_own_that_is_found_by_its_record(service: Service) -> None:
    server = service.server()
    assert server is not None
    process = psutil.Process(server.pid)
    assert os.getsid(server.pid) == server.pid != os.getsid(0)
    assert process.cmdline()[1:3] == ["-m", "sglang.launch_server"]
    assert "PYTORCH_ALLOC_CONF" not in process.environ()


async def test_status_says_what_to_set_where_requests_carry_no_session_id(service: Service) -> None:
    assert (await service.status()).advice is None
    for _ in range(2):
        await service.ask("", "What is 3 times 4?")
    advice = (await service.status()).advice
    assert advice is not None
    assert advice.startswith("2 of 2 requests carried no session id and gateway.session_inference is off: send X-Session-Id or")
    shown = await asyncio.to_thread(CliRunner().invoke, app, ["status", str(service.run.path), "--json"])
    assert shown.exit_code == 0 and json.loads(shown.stdout)["advice"] == advice


async def test_two_steps_weights_arrive_in_the_server_and_are_those_of_the_trainer(service: Service) -> None:
    version, start = await service.reported()
    assert version == "0"
    seen = [start]
    for step in (1, 2):
        done = await service.step(step)
        assert done["train"]["optimizer_steps"] == 1
        # In fp32 engine and trainer are one policy: ids, log-probs and weights went through unchanged.
        assert done["train"]["engine_parity_abs_diff"] < 1e-4
        assert done["train"]["train_rollout_logprob_abs_diff_unshaped"] < 1e-4
        version, checksums = await service.reported()
        assert version == str(step) and (await service.status()).version == step
        assert checksums not in seen
        seen.append(checksums)
    exported = await asyncio.to_thread(service.control.export)
    assert TinyModel(service.run.export).hashes() == seen[-1]
    assert exported["version"] == 2


async def test_a_killed_engine_is_replaced_with_the_present_weights_and_no_answer_breaks(service: Service) -> None:
    before, restarts = await service.reported(), await service.restarts()
    killed = service.server()
    assert killed is not None
    begun = [asyncio.Event() for _ in range(3)]
    asked = {"extra_headers": {"X-Turn-Type": "side"}, "max_tokens": 100}
    answers = [asyncio.create_task(service.ask(f"killed-{i}", "Go on.", begun=one, **asked)) for i, one in enumerate(begun)]
    await asyncio.gather(*(one.wait() for one in begun))
    assert not all(answer.done() for answer in answers)
    os.kill(killed.pid, signal.SIGKILL)
    assert all(await asyncio.gather(*answers))
    assert await service.restarts() == restarts + 1
    assert await service.reported() == before
    assert service.server() != killed
    assert not psutil.pid_exists(killed.pid), "its exit status was taken"
