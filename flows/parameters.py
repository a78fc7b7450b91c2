"""Flow parameters → configuration. Everything is checked here, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from prefect.blocks.core import Block
from pydantic import Field

from blocks import ClusterBlock, ModelBlock
from openclaw_core.config import ConfigError, RunConfig, load_config
from openclaw_core.rundir import RunDir, create_run

B = TypeVar("B", bound=Block)

# Bounds alone: Prefect's form takes the explanations from the flow's docstring.
Steps = Annotated[int, Field(ge=1)]
Minutes = Annotated[float, Field(gt=0)]
Overrides = dict[str, Any]


def resolve_config(
    preset: str,
    steps: int | None = None,
    cluster: str | None = None,
    model: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Preset, then blocks, then overrides, then steps; the later wins. Raises ConfigError naming what is wrong."""
    values: dict[str, Any] = {}
    if cluster is not None:
        values |= _load(ClusterBlock, cluster).overrides()
    if model is not None:
        values |= _load(ModelBlock, model).overrides()
    values |= overrides or {}
    if steps is not None:
        values["train.steps"] = steps
    return load_config(preset, values)


def default_run_id(preset: str, flow_run_id: str) -> str:
    """The same for every attempt of one flow run."""
    return f"{preset}-{flow_run_id[:8]}"


def locate_run(parameters: Mapping[str, Any], flow_run_id: str) -> RunDir:
    """The run directory that a flow run with these parameters uses."""
    config = resolve_config(**{name: value for name, value in parameters.items() if name != "run_id"})
    return RunDir(config.paths.runs.absolute() / (parameters.get("run_id") or default_run_id(config.preset, flow_run_id)))


def open_run(parameters: Mapping[str, Any], flow_run_id: str) -> RunDir:
    """Make that directory, or take it up. Raises ConfigError and RunDirError."""
    config = resolve_config(**{name: value for name, value in parameters.items() if name != "run_id"})
    return create_run(config, parameters.get("run_id") or default_run_id(config.preset, flow_run_id))


def _load(block: type[B], name: str) -> B:
    try:
        return block.load(name)  # pyright: ignore[reportReturnType]
    except ValueError as error:
        raise ConfigError(
            f"no {block.get_block_type_slug()} block {name!r}; make one in the UI under Blocks ({error})"
        ) from error
