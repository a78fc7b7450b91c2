"""What the parts of the configuration tree have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

SECRET = "secret"
"""Type of an error about a value that holds a secret: the message must not repeat it."""


def on_off(value: Any) -> Any:
    """YAML reads a bare on or off as a boolean."""
    return ("off", "on")[value] if isinstance(value, bool) else value


class Section(BaseModel):
    """A part of the tree: frozen, and an unknown name is an error rather than ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
