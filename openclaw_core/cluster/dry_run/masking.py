"""Keys and passwords out of what people are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "****"

_SECRET_NAME = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
_PLACE = re.compile(r"(_PATH|_FILE|_DIR)$", re.IGNORECASE)
"""Variables that say where a secret is, not what it is."""
_KEY = re.compile(r"\b(sk-|hf_|ghp_|glpat-|AKIA)[\w-]{6,}")
"""As the keys of well-known services begin, and ours."""
_USER = re.compile(r"//[^/\s]*@")
_USER_ALONE = re.compile(r"^[^/\s]*@")


def masked(values: Mapping[str, str]) -> dict[str, str]:
    """An environment, or other names with values."""
    return {name: _value(name, value) for name, value in values.items()}


def masked_text(text: str) -> str:
    """Without users and passwords of URLs, and without what looks like a key."""
    return _KEY.sub(HIDDEN, _USER.sub(f"//{HIDDEN}@", text))


def _value(name: str, value: str) -> str:
    if _SECRET_NAME.search(name) and not _PLACE.search(name) and value:
        return HIDDEN
    return masked_text(_USER_ALONE.sub(f"{HIDDEN}@", value) if name.lower().endswith("proxy") else value)
