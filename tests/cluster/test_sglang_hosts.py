"""SGLang's servers on another host than the service: an engine and the judge on node-b, the trainer on node-a, one step.

In SGLang's place is the contract server of tests/sglang_contract, started by the run's own command lines; weights reach it by a
real gloo group over the hosts' network.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_core.cluster.simulation import Simulation
from openclaw_core.cluster.specs import host_path, run_path
from openclaw_core.config.cluster import ClusterConfig
from openclaw_core.ledger import Ledger
from openclaw_core.rundir import create_run
from tests.cluster.going import Going, tiny_run
from tests.sglang_contract.contract import VERSIONS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CHECKOUT = Path(__file__).parents[2]
CONTRACT = ["--contract", VERSIONS[-1]]
ROLES = {"node-a": ("train",), "node-b": ("rollout", "prm")}
SETTINGS: dict[str, Any] = {
    "engine.backend": "sglang",
    "engine.dtype": "fp32",
    "engine.sglang.device": "cpu",
    "engine.sglang.extra_args": CONTRACT,
    "judge.client": "sglang",
    "judge.max_tokens": 200,
    "judge.server.device": "cpu",
    "judge.server.extra_args": [*CONTRACT, "--judges"],
    "judge.server.context_length": 4096,
    "model.dtype": "fp32",
    "train.steps": 1,
}


def with_sglang(cluster: ClusterConfig, place: Path) -> dict[str, Any]:
    """The cluster in its roles, with a Python in whose path the contract server is found as SGLang."""
    program = place / "python"
    path = f"$PYTHONPATH:{CHECKOUT}/tests/sglang_contract/stand_in:{CHECKOUT}"
    program.write_text(f'#!/bin/bash\nPYTHONPATH="{path}" exec {cluster.python} "$@"\n')
    program.chmod(0o755)
    mounts = [{"source": str(path), "target": str(path)} for path in (CHECKOUT / "tests", program)]
    return {
        "cluster.hosts": [{**host.model_dump(mode="json"), "roles": ROLES[host.name]} for host in cluster.hosts],
        "cluster.mounts": [*(mount.model_dump(mode="json") for mount in cluster.mounts), *mounts],
        "cluster.python": str(program),
    }


@pytest.fixture(scope="module")
def going(two_hosts: Simulation, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Going]:
    place = tmp_path_factory.mktemp("sglang")
    cluster = tiny_run(two_hosts, tiny_llama_dir, place).cluster
    config = tiny_run(two_hosts, tiny_llama_dir, place, **SETTINGS, **with_sglang(cluster, place))
    with Going(create_run(config, "served")) as going:
        yield going


def test_the_servers_are_on_their_host_and_ask_for_the_runs_key(going: Going):
    going.until_before("step 1/1: collect")
    for port in (going.config.engine.sglang.port, going.config.judge.server.port):
        assert asked(going, port, "server_info", {}).status_code == 401
        assert asked(going, port, "server_info").status_code == 200


def test_a_step_is_judged_there_and_its_weights_arrive(going: Going):
    going.until_before("step 1/1: report")
    assert asked(going, going.config.engine.sglang.port, "model_info").json()["weight_version"] == "1"
    going.go_on()
    summary = going.end()
    assert (summary["steps"], summary["version"]) == (1, 1)
    ledger = Ledger(Path(host_path(going.config.cluster.head, run_path(going.run.run_id))) / "ledger.sqlite")
    (step,) = ledger.steps()
    judgements = [judged.judgement for judged in ledger.turns(step.turn_ids)]
    assert {(judgement.model, judgement.reward) for judgement in judgements} == {("tiny", -1)}
    # In fp32 engine and trainer are one policy, wherever they are.
    assert step.metrics["train/engine_parity_abs_diff"] < 1e-4


def asked(going: Going, port: int, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """What a server on node-b answers; with the run's key where no ``headers`` are given."""
    address = next(host.reached_at for host in going.config.cluster.hosts if host.name == "node-b")
    key = {"Authorization": f"Bearer {going.run.secrets().server_key}"}
    return httpx.get(
        f"http://{address}:{port}/{path}", headers=key if headers is None else headers, trust_env=False, timeout=60
    )
