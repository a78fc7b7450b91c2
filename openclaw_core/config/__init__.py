"""Configuration: the schema, the presets, and the one place that reads the environment."""

from openclaw_core.config.load import ConfigError, load_config, preset_names
from openclaw_core.config.schema import RunConfig

__all__ = ["ConfigError", "RunConfig", "load_config", "preset_names"]
