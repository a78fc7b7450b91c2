"""The architecture that a plan is made for: of the downloaded model, else of a model that is known by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from openclaw_core.config.schema import RunConfig
from openclaw_core.planning.errors import PlanError
from openclaw_core.weights.layout import hf_directory, judge_directory
from openclaw_core.weights.spec import ModelSpec

KNOWN = Path(__file__).parent / "models"
"""The fields of config.json that count, of models that a preset names."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model's sizes, and the file that they were read from."""

    spec: ModelSpec
    source: Path


def read_architecture(config: RunConfig) -> Architecture:
    """Raises PlanError where there is no file to read, ModelError where the file's model is not supported."""
    downloaded = hf_directory(config) / "config.json"
    source = _source(downloaded, config.model.name)
    if source is None:
        known = ", ".join(sorted(file.stem for file in KNOWN.glob("*.json")))
        raise PlanError(
            f"{downloaded} is missing, and the architecture of {config.model.name!r} is not known without it; "
            f"put the model's config.json there (download-model does), or choose one of {known}"
        )
    return Architecture(ModelSpec.from_hf(source), source)


def judge_architecture(config: RunConfig) -> Architecture | None:
    """Of the model that judges; None where its files are not here and it is none that is known by name.

    Raises ModelError where the file's model is not one that can be counted.
    """
    source = _source(judge_directory(config) / "config.json", config.judge_model)
    return None if source is None else Architecture(ModelSpec.from_hf(source), source)


def _source(downloaded: Path, name: str) -> Path | None:
    return next((file for file in (downloaded, KNOWN / f"{name}.json") if file.is_file()), None)
