"""Where a model's files are: one directory a model under ``paths.models``, one below it for each form."""

from __future__ import annotations

from pathlib import Path

from openclaw_core.config.schema import RunConfig


def hf_directory(config: RunConfig) -> Path:
    """The model as downloaded: config.json, tokenizer, safetensors (stage download-model)."""
    return config.paths.models / config.model.name / "hf"


def judge_directory(config: RunConfig) -> Path:
    """The same of the model that judges."""
    return config.paths.models / config.judge_model / "hf"


def torch_dist_directory(config: RunConfig) -> Path:
    """The start weights in Megatron's form (stage convert-checkpoint)."""
    return config.paths.models / config.model.name / f"torch_dist-{config.model.dtype}"
