"""What all parts of an evaluation share: the form of stored records, and the error."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from openclaw_core.errors import OpenClawError


class EvaluationError(OpenClawError):
    """An evaluation cannot be made, read or compared; the message says what does not fit."""


class Record(BaseModel):
    """A stored part of an evaluation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def write(self, path: Path) -> None:
        """Store it as JSON, whole or not at all."""
        part = path.with_name(path.name + ".part")
        part.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        part.replace(path)
