"""Facts about invented hosts, on which nothing is wrong unless a test says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from openclaw_core.cluster.host_checks.facts import (
    Clock,
    Disk,
    EngineFacts,
    HostCheck,
    HostFacts,
    ImageFacts,
    Inside,
    Interface,
    Module,
    Peer,
)
from openclaw_core.cluster.host_checks.looking import judge
from openclaw_core.cluster.host_checks.rows import Asked
from openclaw_core.cluster.host_checks.versions import CANN, MODULES, PACKAGES
from openclaw_core.cluster.npu import parse_npus
from openclaw_core.config.cluster import HostConfig

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "tests/npu_smi"
RUN, CODE, IMAGE = "r", "c" * 16, "sha256:" + "1" * 64
GB = 10**9
OURS, THEIRS = "a" * 64, "b" * 64


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_text()


def inside(**changes: Any) -> Inside:
    modules = {name: Module(f"/opt/stack/{name}", version, commit) for name, (version, commit) in MODULES.items()}
    modules["openclaw_core"] = Module(f"/openclaw/code/{CODE}/openclaw_core", None, None)
    return replace(Inside(modules, dict(PACKAGES), CANN, 8, None), **changes)


def fit(asked: Asked, index: int) -> HostFacts:
    """A host on which nothing is wrong."""
    config = asked.cluster.hosts[index].model_copy(update={"address": f"10.0.0.{index + 1}"})
    others = [other.name for other in asked.cluster.hosts if other.name != config.name]
    return HostFacts(
        config=config,
        machine="aarch64",
        cores=192,
        memory=1500 * GB,
        available=1400 * GB,
        disk=Disk(str(config.work_root), 5000 * GB, "xfs", 0, None),
        listening=frozenset({22}),
        interfaces=(Interface("lo", True, ("127.0.0.1",)), Interface("enp1", True, (f"10.0.0.{index + 1}",))),
        resolved=(f"10.0.0.{index + 1}",),
        peers=tuple(Peer(name, None) for name in others),
        clock=Clock(0.02, 0.01),
        model="d" * 64,
        driver="25.5.0",
        npus=parse_npus(sample("a2_idle")),
        engine=EngineFacts("27.3.1", ImageFacts(IMAGE, "arm64"), ()),
        inside=inside(),
        code=CODE,
    )


def rows_of(asked: Asked, **changes: Any) -> list[HostCheck]:
    """Rows of both hosts; the second one is changed."""
    return list(judge([fit(asked, 0), replace(fit(asked, 1), **changes)], asked))


def red(rows: Iterable[HostCheck]) -> list[HostCheck]:
    return [row for row in rows if not row.ok]


def only_red(rows: Iterable[HostCheck]) -> HostCheck:
    wrong = red(rows)
    assert len(wrong) == 1, [str(row) for row in wrong]
    assert wrong[0].advice, "a red row says what to do"
    return wrong[0]


def host_named(asked: Asked, **changes: Any) -> HostConfig:
    return asked.cluster.hosts[1].model_copy(update=changes)
