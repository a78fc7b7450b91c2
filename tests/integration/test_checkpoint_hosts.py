"""Parts of a checkpoint stay on the hosts that wrote them; here a host is a directory with a PartStore, an actor of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from openclaw_core.trainer.parts import PartStore, verify_on
from openclaw_core.trainer.retention import META, CheckpointInfo, commit, newest_whole, read_info, step_directory
from tests.children import open_store
from tests.integration.checkpoint_rank import Rank

pytestmark = pytest.mark.ranks

HOLDERS = ("a", "b")
COMMON = {".metadata", "common.pt", "metadata.json"}


class World:
    """Two ranks, that may be told to use any host's disk; the service, which keeps the manifests, has another."""

    def __init__(self, root: Path, hf: Path) -> None:
        self.root, self.service = root, root / "service"
        actor = ray.remote(num_cpus=0, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}})
        self.meeting = open_store(2)
        self.ranks: list[Any] = [actor(Rank).remote(rank, self.meeting.port, hf) for rank in range(2)]
        self.stores: dict[str, Any] = {host: actor(PartStore).remote(str(root / host)) for host in HOLDERS}
        self.verify = verify_on(self.stores, deadline_s=60)
        self.all("begin", *[(root / "start" / "step_000000",)] * 2)
        self.all("go_on", (1,), (1,))
        self.save(1)
        self.all("go_on", (1,), (1,))
        self.save(2)
        self.straight = self.all("go_on", (2,), (2,))

    def all(self, method: str, *arguments: tuple[Any, ...]) -> list[Any]:
        calls = [getattr(rank, method).remote(*own) for rank, own in zip(self.ranks, arguments, strict=True)]
        return ray.get(calls, timeout=120)

    def save(self, step: int) -> None:
        """Rank 0 on host a, rank 1 on host b."""
        written = self.all("write", *[(self.on(host, step), host) for host in "ab"])
        commit(step_directory(self.service, step), written, {"step": step})

    def load(self, step: int, hosts: str) -> list[Any]:
        info = self.info(step)
        return self.all("load", *[(self.on(host, step), info, self.stores) for host in hosts])

    def info(self, step: int) -> CheckpointInfo:
        return read_info(step_directory(self.service, step))

    def on(self, host: str, step: int) -> Path:
        return step_directory(self.root / host, step)

    def files(self, host: str, step: int) -> set[str]:
        return {path.name for path in self.on(host, step).iterdir() if path.suffix != ".lock"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_qwen3_dir: Path) -> Iterator[World]:
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    yield World(tmp_path_factory.mktemp("hosts"), tiny_qwen3_dir)
    ray.shutdown()


def test_each_host_holds_what_its_ranks_wrote_and_the_manifest_says_so(world: World) -> None:
    assert world.files("a", 2) == {"__0_0.distcp"} | COMMON
    assert world.files("b", 2) == {"__1_0.distcp"}
    assert world.files("service", 2) == {META}

    info = world.info(2)
    assert {name: part.host for name, part in info.parts.items()} == {"__1_0.distcp": "b"} | dict.fromkeys(
        {"__0_0.distcp"} | COMMON, "a"
    )
    assert info.ranks == {"tensor_parallel": 2, "data_parallel": 1}
    assert world.verify("step_000002", info.parts) == []


def test_a_restart_elsewhere_pulls_only_what_its_ranks_need_and_goes_on_bit_for_bit(world: World) -> None:
    assert world.load(2, "cb") == [{"step": 2}] * 2

    assert world.all("go_on", (2,), (2,)) == world.straight
    assert world.files("c", 2) == world.files("a", 2)
    assert world.files("b", 2) == {"__0_0.distcp", "__1_0.distcp"} | COMMON  # norms are written by rank 0 alone


def test_all_ranks_on_one_new_host_share_what_they_pull(world: World) -> None:
    world.load(2, "dd")

    assert world.all("go_on", (2,), (2,)) == world.straight
    assert world.files("d", 2) == {"__0_0.distcp", "__1_0.distcp"} | COMMON


def test_a_part_damaged_on_its_holder_is_refused_on_load_and_passed_over_for_the_checkpoint_before(world: World) -> None:
    damaged = world.on("a", 2) / "__0_0.distcp"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    with pytest.raises(ray.exceptions.RayTaskError, match=r"__0_0\.distcp as sent by a differs from its checksum"):
        world.load(2, "eb")
    assert world.files("e", 2) == COMMON

    chosen = newest_whole(world.service, world.verify)
    assert chosen is not None
    assert chosen.directory == step_directory(world.service, 1)
    assert chosen.damaged == {step_directory(world.service, 2): [f"{damaged} on a differs from its checksum"]}
    world.load(1, "ab")
    world.all("go_on", (1,), (1,))
    assert world.all("go_on", (2,), (2,)) == world.straight


def test_a_host_that_is_gone_takes_its_parts_with_it(world: World) -> None:
    findings = verify_on({"a": world.stores["a"]}, deadline_s=60)("step_000001", world.info(1).parts)

    assert findings == ["b, which holds 1 of its parts, is not among the hosts ['a']"]


def test_a_store_forgets_what_is_no_longer_kept(world: World) -> None:
    assert ray.get(world.stores["b"].retain.remote(["step_000001"])) == ["step_000002"]
    assert [path.name for path in (world.root / "b").iterdir()] == ["step_000001"]
