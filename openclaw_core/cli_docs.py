"""docs/CLI.md: every command with its options, from the commands themselves. `python -m openclaw_core.cli_docs` prints it."""

from __future__ import annotations

import re
import sys

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from openclaw_core.cli import app
from openclaw_core.cli_output import NAME

_NOTE = "This page is made from the code: `python -m openclaw_core.cli_docs > docs/CLI.md`.\n"
_BLOCK = re.compile(r"^[\b]\n(?P<title>[\w ]+):\n(?P<lines>(?:  .+\n?)+)", re.MULTILINE)
"""As ``cli_output.examples`` and ``EXIT_CODES`` write what a terminal must not wrap."""


def document() -> str:
    """The page as Markdown."""
    command = get_command(app)
    page = get_docs_for_click(obj=command, ctx=typer.Context(command), name=NAME)
    title, _, rest = _BLOCK.sub(_as_markdown, page).partition("\n")
    return f"{title}\n\n{_NOTE}{rest}".rstrip() + "\n"


def _as_markdown(block: re.Match[str]) -> str:
    lines = [line.strip() for line in block["lines"].splitlines()]
    if block["title"] == "Examples":
        body = ["```console", *(f"$ {line}" for line in lines), "```"]
    else:
        body = [f"* `{word}`: {rest.strip()}" for word, _, rest in (line.partition(" ") for line in lines)]
    return "\n".join([f"**{block['title']}**:", "", *body, ""])


if __name__ == "__main__":
    sys.stdout.write(document())
