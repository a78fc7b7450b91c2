"""A run's parameters as they may be shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from openclaw_core.config import RunConfig

_SECRET = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
LEFT_OUT = "…"


def parameters(config: RunConfig) -> dict[str, Any]:
    """Dotted name → value. Keys are no parameters; what an environment holds under a name like a key's is left out."""
    return dict(_leaves(config.model_dump(mode="json")))


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if not isinstance(value, dict):
            yield prefix + key, value
        elif key == "environment":
            yield prefix + key, {name: LEFT_OUT if _SECRET.search(name) else text for name, text in value.items()}
        else:
            yield from _leaves(value, f"{prefix}{key}.")
