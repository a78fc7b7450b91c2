"""Flow parameters → configuration. Everything is checked here, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from prefect.blocks.core import Block
from prefect.blocks.system import Secret

from blocks import ClusterBlock, ModelBlock, SimulatorBlock
from openclaw_core.config import ConfigError, RunConfig, load_config
from openclaw_core.config.env import client_keys, external_keys
from openclaw_core.rundir import RunDir, create_run

B = TypeVar("B", bound=Block)

NOT_OF_CONFIG = ("run_id", "judge_key", "dry_run")
"""Parameters of the flows that say nothing of the configuration."""


def resolve_config(
    preset: str,
    steps: int | None = None,
    cluster: str = "",
    model: str = "",
    simulator: str = "",
    overrides: Mapping[str, Any] | None = None,
    **groups: Mapping[str, Any] | None,
) -> RunConfig:
    """Preset, then blocks, then groups (flows/form.py), then overrides, then steps; the later wins.

    Raises ConfigError naming what is wrong.
    """
    values: dict[str, Any] = {}
    if cluster:
        values |= cluster_overrides(cluster)
    if model:
        values |= _load(ModelBlock, model).overrides()
    if simulator:
        values |= _load(SimulatorBlock, simulator).overrides()
    for group, given in groups.items():
        values |= {f"{group}.{name}": value for name, value in (given or {}).items()}
    values |= overrides or {}
    if steps is not None:
        values["train.steps"] = steps
    return load_config(preset, values)


def default_run_id(preset: str, flow_run_id: str) -> str:
    """The same for every attempt of one flow run."""
    return f"{preset}-{flow_run_id[:8]}"


def locate_run(parameters: Mapping[str, Any], flow_run_id: str) -> RunDir:
    """The run directory that a flow run with these parameters uses."""
    config = config_of(parameters)
    return RunDir(config.paths.runs.absolute() / (parameters.get("run_id") or default_run_id(config.preset, flow_run_id)))


def open_run(parameters: Mapping[str, Any], flow_run_id: str) -> RunDir:
    """Make that directory, or take it up; keys of others' services come along. Raises ConfigError and RunDirError."""
    config = config_of(parameters)
    keys = keys_of(parameters.get("simulator", ""), parameters.get("judge_key", ""))
    run_id = parameters.get("run_id") or default_run_id(config.preset, flow_run_id)
    return create_run(config, run_id, keys, client_keys())


def keys_of(simulator: str = "", judge_key: str = "") -> dict[str, str]:
    """Keys of others' services: those of the environment, and over them those of a Simulator and of a Secret block."""
    keys = external_keys()
    if simulator:
        keys |= _load(SimulatorBlock, simulator).external_keys()
    if judge_key:
        keys["judge"] = secret(judge_key)
    return keys


def cluster_overrides(name: str) -> dict[str, Any]:
    """What a Cluster block stands for. Raises ConfigError."""
    return _load(ClusterBlock, name).overrides()


def secret(name: str) -> str:
    """What a Secret block holds. Raises ConfigError."""
    return str(_load(Secret, name).get())


def config_of(parameters: Mapping[str, Any]) -> RunConfig:
    """The configuration that a flow run with these parameters has. Raises ConfigError."""
    return resolve_config(**{name: value for name, value in parameters.items() if name not in NOT_OF_CONFIG})


def _load(block: type[B], name: str) -> B:
    try:
        return block.load(name)  # pyright: ignore[reportReturnType]
    except ValueError as error:
        raise ConfigError(
            f"no {block.get_block_type_slug()} block {name!r}; make one in the UI under Blocks ({error})"
        ) from error
