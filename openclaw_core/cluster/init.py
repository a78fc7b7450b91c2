"""A cluster out of a file, or out of the environment names of the earlier scripts, on top of a preset's.

``openclaw-rl cluster init`` keeps it as a Cluster block, so that a deployment needs nothing else (blocks/cluster.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from openclaw_core.config.cluster import ClusterConfig
from openclaw_core.config.hosts import lay_on_hosts
from openclaw_core.config.legacy import read_legacy
from openclaw_core.config.load import ConfigError, load_config
from openclaw_core.config.schema import RunConfig

SETS_HOSTS = ("MASTER_ADDR", "PRM_NODE", "WORK_ROOT", "PRM_GPUS")


def cluster_from_file(file: Path, preset: str) -> ClusterConfig:
    """The preset's cluster with what a YAML file says in place of it; docs/RUNBOOK.md has a sample.

    Its keys are those of ``cluster`` in a preset. Of ``ssh`` and ``build`` single fields may be given. Files that ``ssh`` names
    are below the file's directory where they are not absolute; ``~`` is this user's home.

    Raises ConfigError: the file cannot be read, or what it says is not allowed.
    """
    given = _read(file)
    base = _preset(preset).model_dump(mode="json")
    for section in ("ssh", "build"):
        if isinstance(given.get(section), dict):
            given[section] = {**(base[section] or {}), **given[section]}
    ssh: Any = given.get("ssh")
    if isinstance(ssh, dict):
        ssh = cast("dict[str, Any]", ssh)
        given["ssh"] = ssh | {name: _place(file, ssh[name]) for name in ("key", "known_hosts") if ssh.get(name)}
    return _checked(preset, given)


def cluster_from_environment(environment: Mapping[str, str], preset: str) -> ClusterConfig:
    """The preset's cluster with MASTER_ADDR, PRM_NODE, WORK_ROOT, PRM_GPUS and the proxies laid over it.

    Raises ConfigError: none of the first four is set, or one is not allowed.
    """
    if not any(environment.get(name, "").strip() for name in SETS_HOSTS):
        raise ConfigError(f"nothing is said of the hosts: give --file, or set {', '.join(SETS_HOSTS)}")
    laid = lay_on_hosts(read_legacy(environment), load_config(preset, {}), {})
    return _checked(preset, {name.removeprefix("cluster."): value for name, value in laid.overrides.items()})


def _preset(preset: str) -> ClusterConfig:
    cluster = load_config(preset).cluster
    if not cluster.containers:
        raise ConfigError(f"preset {preset} runs on this machine; a cluster is made on top of one with hosts, as 4b-2nodes")
    return cluster


def _read(file: Path) -> dict[str, Any]:
    try:
        given: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(given, dict) or "hosts" not in given:
        raise ConfigError(f"{file}: it must have `hosts:` with a list, and what else of the cluster differs from the preset")
    return {str(name): value for name, value in cast("dict[Any, Any]", given).items()}


def _place(file: Path, text: str) -> str:
    return str(file.absolute().parent / Path(text).expanduser())


def _checked(preset: str, given: Mapping[str, Any]) -> ClusterConfig:
    """Through the preset, so that what is wrong is told as everywhere."""
    _preset(preset)
    overrides: dict[str, Any] = {}
    for name, value in given.items():
        if name == "ssh" and isinstance(value, dict):
            overrides |= {f"cluster.ssh.{inner}": of for inner, of in cast("dict[str, Any]", value).items()}
        else:
            overrides[f"cluster.{name}"] = value
    config: RunConfig = load_config(preset, overrides)
    return config.cluster
