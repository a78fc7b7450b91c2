"""Preset + overrides → RunConfig, with errors that name the value, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from openclaw_core.config.schema import RunConfig
from openclaw_core.config.section import SECRET
from openclaw_core.errors import OpenClawError

PRESETS = Path(__file__).parent / "presets"


class ConfigError(OpenClawError):
    """A preset or a parameter that does not exist or is out of bounds."""

    exit_code = 2


def preset_names() -> list[str]:
    """The presets that ship with the project."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_config(preset: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """The preset's values with ``overrides`` (dotted name → value) laid over them.

    Raises:
        ConfigError: unknown preset, unknown parameter, or a value out of bounds.
    """
    if preset not in preset_names():
        raise ConfigError(f"no preset {preset!r}; there are: {', '.join(preset_names())}")
    tree: dict[str, Any] = yaml.safe_load((PRESETS / f"{preset}.yaml").read_text())
    tree["preset"] = preset
    for name, value in (overrides or {}).items():
        _set(tree, name, value)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def parse_assignment(text: str) -> tuple[str, Any]:
    """``name=value`` of the command line; the value is read as YAML. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{text!r} is not name=value, as in train.steps=5")
    return name.strip(), yaml.safe_load(value)


def parameter_names(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """Dotted names of every leaf parameter."""
    names: list[str] = []
    for key, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += parameter_names(inner, f"{prefix}{key}.")
        else:
            names.append(prefix + key)
    return names


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    if dotted not in parameter_names() or dotted == "preset":
        near = difflib.get_close_matches(dotted, parameter_names(), n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; `openclaw-rl config` lists all"
        raise ConfigError(f"no parameter {dotted!r}{hint}")
    *path, leaf = dotted.split(".")
    for key in path:
        tree = tree.setdefault(key, {})
    tree[leaf] = value


def _explain(error: ValidationError) -> str:
    return "\n".join(
        f"{'.'.join(map(str, item['loc'])) or 'config'}: {item['msg'].removeprefix('Value error, ')}"
        + ("" if item["type"] == SECRET or isinstance(item.get("input"), dict) else f" (got {item.get('input')!r})")
        for item in error.errors()
    )
