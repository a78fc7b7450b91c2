"""What the environment says of hosts, and other hosts than the preset's, as parameters of a preset."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from openclaw_core.config.cluster import HostConfig
from openclaw_core.config.legacy import HINTS, ClusterHints, Legacy
from openclaw_core.config.load import ConfigError, load_config
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


def with_judge_urls(preset: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``overrides``, and where they replace the preset's hosts, judge.base_urls for the hosts that have the role prm now.

    Raises ConfigError, as ``load_config``.
    """
    if "cluster.hosts" not in overrides or "judge.base_urls" in overrides:
        return dict(overrides)
    before, after = load_config(preset), load_config(preset, overrides)
    urls = judge_urls(before.judge.base_urls, before.cluster.hosts, after.cluster.hosts)
    return {**overrides, **({"judge.base_urls": list(urls)} if urls != before.judge.base_urls else {})}


def judge_urls(urls: Sequence[str], before: Sequence[HostConfig], after: Sequence[HostConfig]) -> tuple[str, ...]:
    """A URL that names a host with the role prm of ``before`` becomes that of each such host of ``after``; others stay."""
    judges = [host for host in after if "prm" in host.roles]
    names = {place.lower() for host in before if "prm" in host.roles for place in (host.name, host.reached_at)}
    found: dict[str, None] = {}
    for url in urls:
        parts = urlsplit(url)
        if judges and parts.hostname in names:
            port = f":{parts.port}" if parts.port else ""
            found |= {parts._replace(netloc=f"{host.ray_address}{port}").geturl(): None for host in judges}
        else:
            found[url] = None
    return tuple(found)


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
    if re.search(r"(^|//)[^/]*@", value):
        raise ConfigError(
            f"{name} holds a user or a password, which the run's config.json and Prefect would show; give the hosts a proxy "
            f"that asks for none ({dotted}), or unset it"
        )
    return value
