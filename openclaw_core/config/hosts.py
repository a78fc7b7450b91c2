"""What the environment says of hosts, and other hosts than the preset's, as parameters of a preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_core.config.cluster import NO_PASSWORD, HostConfig
from openclaw_core.config.legacy import HINTS, ClusterHints, Legacy
from openclaw_core.config.load import ConfigError
from openclaw_core.config.schema import RunConfig

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class OnHosts:
    """What came of the variables that say something of hosts."""

    overrides: dict[str, Any]
    """Dotted name → value."""
    said: dict[str, str]
    """Variable → what became of it, for people."""


def lay_on_hosts(legacy: Legacy, config: RunConfig, assigned: Mapping[str, Any]) -> OnHosts:
    """Addresses, directories, NPUs and proxies laid over the hosts of ``config``; ``assigned`` (the command line) wins.

    Raises ConfigError, a line each: no host has the role, two variables contradict each other, a proxy's password.
    """
    given = [name for name in HINTS if name in legacy.shown]
    if not config.cluster.containers:
        here = f"without effect, for preset {config.preset} runs on this machine"
        return OnHosts({}, {name: here for name in given if name not in PROXIES})
    overrides: dict[str, Any] = {}
    said: dict[str, str] = {}
    hosts = [name for name in given if name not in PROXIES]
    if hosts and "cluster.hosts" in assigned:
        said |= dict.fromkeys(hosts, "no effect, for cluster.hosts of the command line counts")
    elif hosts:
        laid = _on_hosts(legacy.hints, config)
        said |= laid.said
        overrides |= laid.overrides
    for name in (name for name in given if name in PROXIES):
        dotted = f"cluster.{HINTS[name]}"
        if dotted in assigned:
            said[name] = f"no effect, for {dotted} of the command line counts"
        else:
            overrides[dotted] = _without_password(name, getattr(legacy.hints, HINTS[name]), dotted)
            said[name] = dotted
    return OnHosts(overrides, said)


def _on_hosts(hints: ClusterHints, config: RunConfig) -> OnHosts:
    """Those that change cluster.hosts."""
    cluster = config.cluster
    changes: dict[str, dict[str, Any]] = {host.name: {} for host in cluster.hosts}
    said: dict[str, str] = {}
    if hints.master_address:
        changes[cluster.head.name]["address"] = hints.master_address
        said["MASTER_ADDR"] = f"address of host {cluster.head.name}"
    if hints.prm_address:
        judge = _judge(config, f"PRM_NODE={hints.prm_address}")
        if judge is cluster.head and hints.master_address not in (None, hints.prm_address):
            raise ConfigError(
                f"MASTER_ADDR={hints.master_address} and PRM_NODE={hints.prm_address} are both host {judge.name} of preset "
                f"{config.preset}, which has one address; give one of them, or another preset"
            )
        changes[judge.name]["address"] = hints.prm_address
        said["PRM_NODE"] = f"address of host {judge.name}"
    if hints.prm_npus:
        judge = _judge(config, f"PRM_GPUS={hints.prm_npus}")
        if judge.roles != ("prm",):
            raise ConfigError(
                f"PRM_GPUS={hints.prm_npus}: host {judge.name} of preset {config.preset} has other roles too, and its judge "
                "takes the NPUs that they leave (`openclaw-rl plan`); unset it"
            )
        changes[judge.name]["npus"] = hints.prm_npus
        said["PRM_GPUS"] = f"NPUs of host {judge.name}"
    if hints.work_root:
        for change in changes.values():
            change["work_root"] = str(hints.work_root)
        said["WORK_ROOT"] = "work_root of every host"
    hosts = [host.model_dump(mode="json") | changes[host.name] for host in cluster.hosts]
    return OnHosts({"cluster.hosts": hosts}, said)


def _judge(config: RunConfig, said: str) -> HostConfig:
    judges = config.cluster.with_role("prm")
    if len(judges) != 1:
        names = ", ".join(host.name for host in judges) or "none"
        raise ConfigError(f"{said}: preset {config.preset} has {names} with the role prm, not one host; set cluster.hosts")
    return judges[0]


def _without_password(name: str, value: str, dotted: str) -> str:
    if "@" in value:
        raise ConfigError(f"{name} {NO_PASSWORD} ({dotted}); or unset it")
    return value
