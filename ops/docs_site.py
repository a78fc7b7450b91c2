"""A hook of mkdocs: links to files of the checkout, which the site does not hold, are shown as plain text there."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of a page."""
    return _OUTSIDE.sub(r"\1", markdown)
