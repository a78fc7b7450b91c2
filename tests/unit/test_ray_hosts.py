"""What a launch of Ray over hosts takes up, and what it makes anew: containers and nodes as their engines and Ray tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from openclaw_core.cluster import ray_hosts as module
from openclaw_core.cluster.docker.containers import Engine, Found
from openclaw_core.cluster.hosts import Hosts
from openclaw_core.cluster.pinning import HOST
from openclaw_core.cluster.ray_hosts import RayHosts
from openclaw_core.cluster.specs import ContainerSpec, ray_specs
from openclaw_core.config import RunConfig, load_config
from openclaw_core.planning.placement import place_ranks
from openclaw_core.rundir import create_run

HEAD, WORKER = "node-a", "node-b"


class World:
    """Two hosts: the containers on each (role → state), and which hosts are nodes of Ray."""

    def __init__(self, containers: dict[str, dict[str, str]], nodes: Sequence[str]) -> None:
        self.containers, self.nodes = containers, set(nodes)
        self.done: list[str] = []

    def engine(self, host: str) -> Engine:
        def of_run(run_id: str) -> list[Found]:
            return [Found(role, role, run_id, state, None, role) for role, state in self.containers[host].items()]

        def start(spec: ContainerSpec) -> bool:
            assert spec.role not in self.containers[host], "one of that name is there"
            self.containers[host][spec.role] = "running"
            self.nodes.add(host)
            self.done.append(f"start {spec.role}")
            return False

        def remove(names: Sequence[str]) -> None:
            for name in names:
                del self.containers[host][name]
                self.nodes.discard(host)
                if name == "head":
                    self.nodes.clear()
                self.done.append(f"remove {name}")

        return cast(Engine, SimpleNamespace(of_run=of_run, start=start, remove=remove, foreign=lambda _run: []))

    def dashboard(self, *_arguments: Any, **_options: Any) -> httpx.Response:
        summary = [{"raylet": {"state": "ALIVE", "resourcesTotal": {f"{HOST}{name}": 1}}} for name in self.nodes]
        return httpx.Response(200, json={"data": {"summary": summary}})


def config() -> RunConfig:
    hosts = [
        {"name": HEAD, "roles": ["train", "rollout"], "address": "192.0.2.1"},
        {"name": WORKER, "roles": ["prm"], "address": "192.0.2.2"},
    ]
    return load_config("2nodes-sim", {"cluster.hosts": hosts})


@pytest.mark.parametrize(
    ("containers", "nodes", "reused", "done"),
    [
        ({HEAD: {}, WORKER: {}}, [], False, ["start head", "start worker"]),
        ({HEAD: {"head": "running"}, WORKER: {"worker": "running"}}, [HEAD, WORKER], True, []),
        (
            {HEAD: {"head": "exited"}, WORKER: {"worker": "running"}},
            [],
            False,
            ["remove worker", "remove head", "start head", "start worker"],
        ),
        ({HEAD: {"head": "running"}, WORKER: {"worker": "exited"}}, [HEAD], False, ["remove worker", "start worker"]),
        # Ray goes on listing a node for a while after its end.
        ({HEAD: {"head": "running"}, WORKER: {"worker": "exited"}}, [HEAD, WORKER], False, ["remove worker", "start worker"]),
        # A worker of the head before this one waits for that, with its token.
        ({HEAD: {"head": "running"}, WORKER: {"worker": "running"}}, [HEAD], False, ["remove worker", "start worker"]),
        ({HEAD: {"head": "running"}, WORKER: {"worker": "restarting"}}, [HEAD], False, ["remove worker", "start worker"]),
    ],
    ids=["nothing", "all", "dead head", "dead worker", "dead worker, listed", "another head's worker", "worker refused"],
)
def test_what_is_no_node_of_the_head_is_made_anew(
    containers: dict[str, dict[str, str]],
    nodes: list[str],
    reused: bool,
    done: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, asked = World(containers, nodes), config()
    monkeypatch.setattr(module.httpx, "get", world.dashboard)
    run = create_run(asked.model_copy(update={"paths": asked.paths.model_copy(update={"runs": tmp_path})}), "r")
    with Hosts(asked.cluster) as hosts:
        ray = RayHosts(asked, run, hosts, {name: world.engine(name) for name in (HEAD, WORKER)})
        assert ray.launch(ray_specs(asked, "r", place_ranks(asked), "code")) is reused
    assert world.done == done
    assert world.containers == {HEAD: {"head": "running"}, WORKER: {"worker": "running"}}
