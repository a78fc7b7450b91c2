"""Where the ranks of a cluster preset really go: placeholder actors on simulated Ray nodes that have the hosts' resources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

from openclaw_core.cluster.specs import ray_npus, resources
from openclaw_core.config import load_config
from openclaw_core.config.schema import RunConfig
from openclaw_core.planning.placement import Role, place_ranks
from openclaw_core.trainer import ranks as module
from openclaw_core.trainer.accelerator import NPU
from openclaw_core.trainer.ranks import RankGroup
from tests.integration.placeholder import CARDS, HOST, Placeholder


@pytest.fixture
def nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunConfig]:
    """A Ray node for each host of the preset, with the resources and the environment that its container would have."""
    config = load_config(request.param)
    placement = place_ranks(config)
    monkeypatch.setattr(module.accelerators, "detect", lambda: NPU)
    cluster = Cluster()
    try:
        for host in config.cluster.hosts:
            cards = ray_npus(host, placement)
            env = {HOST: host.name, CARDS: ",".join(map(str, cards))}
            cluster.add_node(
                num_cpus=4,
                object_store_memory=80_000_000,
                resources=resources(host, placement),
                env_vars=env,
                include_dashboard=False,
            )
        ray.init(address=cluster.address, log_to_driver=False)
        yield config
    finally:
        ray.shutdown()
        cluster.shutdown()


def start(role: Role, config: RunConfig) -> RankGroup:
    hosts = [host for host in role.hosts for _ in range(role.ranks)]
    return RankGroup(role.name, Placeholder, config, "", hosts, threads=1)  # type: ignore[arg-type]


def places(group: RankGroup) -> list[tuple[str, str]]:
    """Of each rank, in rank order."""
    return ray.get([rank.place.remote() for rank in group.ranks], timeout=120)


def planned(role: Role) -> list[tuple[str, str]]:
    return [(host, str(card)) for host, cards in zip(role.hosts, role.cards, strict=True) for card in cards]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("nodes", ["4b-2nodes", "4b-1node", "32b-8nodes"], indirect=True)
def test_each_rank_is_on_its_host_and_has_an_npu_of_its_own_that_no_engine_has(nodes: RunConfig):
    placement = place_ranks(nodes)
    assert placement.scorer is not None
    groups = start(placement.trainer, nodes), start(placement.scorer, nodes)
    trainer, scorer = map(places, groups)
    # Which rank of a host has which of its NPUs is Ray's to say.
    assert [host for host, _ in trainer] == [host for host, _ in planned(placement.trainer)]
    assert sorted(trainer) == sorted(planned(placement.trainer))
    assert sorted(scorer) == sorted(planned(placement.scorer))
    engines = {(host, str(card)) for host in placement.engine.hosts for card in placement.engine.cards_on(host)}
    assert not engines & {*trainer, *scorer}
