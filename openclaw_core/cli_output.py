"""How commands speak: results on standard output, all else on standard error, and an exit code that says how it ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import typer

from openclaw_core.errors import OpenClawError

if TYPE_CHECKING:
    from rich.console import RenderableType

NAME = "openclaw-rl"
JSON = "--json"
WIDTH = 100
"""Columns where there is no terminal."""


class ExitCode(IntEnum):
    """What a shell sees. Errors of the project carry theirs (``OpenClawError.exit_code``)."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_SERVICE = 3
    INTERRUPTED = 130


EXIT_CODES = """\b
Exit codes:
  0    done
  1    failed, or a check found something that is not right
  2    bad usage: an option, a parameter or a run that does not exist
  3    the run's training service does not answer
  130  interrupted by Ctrl-C

With --json standard output is one JSON object; of a command that fails it is {"error": {"message": ..., "exit_code": ...}}."""


def examples(*lines: str) -> str:
    """The end of a command's help: how it is used, a command a line."""
    return "\b\nExamples:\n" + "\n".join(f"  openclaw-rl {line}" for line in lines)


def print_json(result: Mapping[str, Any]) -> None:
    """A command's result, for programs: one line."""
    typer.echo(json.dumps(result))


def print_rich(what: RenderableType) -> None:
    """To the terminal in its width; elsewhere in WIDTH columns, without colours and without blanks at the ends of lines."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if console.is_terminal:
        console.print(what)
        return
    console = Console(markup=False, highlight=False, emoji=False, width=WIDTH)
    with console.capture() as captured:
        console.print(what)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def say(line: str) -> None:
    """Something for people beside the result."""
    typer.echo(line, err=True)


def run_app(app: typer.Typer) -> int:
    """Run the command that the process was started with; returns its exit code.

    Errors that a person can mend are shown alone, everything else with its traceback.
    """
    as_json = JSON in sys.argv
    try:
        # Typer shows wrong usage by itself, and ends the process; not where a program waits for an object.
        code = app(prog_name=NAME, standalone_mode=not as_json) or ExitCode.DONE
    except OpenClawError as error:
        return _failed(str(error), error.exit_code, as_json)
    except typer.TyperException as error:
        return _failed(error.format_message(), error.exit_code, as_json)
    return _failed("interrupted", code, as_json) if code == ExitCode.INTERRUPTED else code


def _failed(message: str, code: int, as_json: bool) -> int:
    say(f"error: {message}")
    if as_json:
        print_json({"error": {"message": message, "exit_code": code}})
    return code
