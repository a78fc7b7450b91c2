"""`openclaw-rl turns`: look at a run's turns, live or ended, without disturbing it."""

# Heavy imports stay inside the commands, so that --help is quick.
from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_core.ledger_rows import TurnStatus
from openclaw_core.rundir import RunDir, existing_run
from openclaw_core.types import DropReason

if TYPE_CHECKING:
    from rich.console import RenderableType

    from openclaw_core.inspection.reader import TurnRecord
    from openclaw_core.trainer.token_table import SampleTokens

app = typer.Typer(help="Look at a run's turns: list, show one in full, export.", no_args_is_help=True, rich_markup_mode=None)

WIDTH = 100
"""Columns where there is no terminal."""

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its directory's name below runs/; or that directory.")]
RunsRoot = Annotated[Path, typer.Option("--runs", help="Where runs are.")]
Session = Annotated[str | None, typer.Option(help="Of this session: its id, or its beginning.")]
Step = Annotated[int | None, typer.Option(min=1, help="In the batch of this step, or dropped in it.")]
Status = Annotated[TurnStatus | None, typer.Option(help="Where the turn stands.")]
Reason = Annotated[DropReason | None, typer.Option("--drop-reason", help="Why it was dropped.")]
Reward = Annotated[int | None, typer.Option(min=-1, max=1, help="The judge's verdict: -1, 0 or 1.")]
MinVersion = Annotated[int | None, typer.Option(min=0, help="Oldest token of this weight version or a later one.")]
MaxVersion = Annotated[int | None, typer.Option(min=0, help="Oldest token of this weight version or an earlier one.")]
Search = Annotated[str | None, typer.Option("--text", help="Said in messages, answer, next state or hints; any case.")]
Oldest = Annotated[bool, typer.Option("--oldest-first", help="In the order of capture; else newest first.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, as in exports.")]


@app.command("list")
def list_turns(
    run: RunName,
    session: Session = None,
    step: Step = None,
    status: Status = None,
    drop_reason: Reason = None,
    reward: Reward = None,
    min_version: MinVersion = None,
    max_version: MaxVersion = None,
    text: Search = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 20,
    oldest_first: Oldest = False,
    as_json: AsJson = False,
    runs: RunsRoot = Path("runs"),
) -> None:
    """A line a turn: where it stands, its verdict, answer and next state."""
    from openclaw_core.inspection.flat import flat, json_safe
    from openclaw_core.inspection.listing import turns_table
    from openclaw_core.inspection.reader import LedgerReader, TurnFilter

    wanted = TurnFilter(session, step, status, drop_reason, reward, min_version, max_version, text)
    with LedgerReader(existing_run(run, runs).ledger_file) as ledger:
        # All at once: a pager that is left open must not hold the ledger's log.
        records = list(ledger.turns(wanted, limit=limit, newest_first=not oldest_first))
    if as_json:
        for record in records:
            typer.echo(json.dumps(json_safe(flat(record, None))))
    elif records:
        _print(turns_table(records))
    else:
        typer.echo("no such turns", err=True)


@app.command("show")
def show_turn(
    run: RunName,
    turn: Annotated[str, typer.Argument(metavar="TURN", help="The turn's id, or as much of it as is unique.")],
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing; the table has all tokens.")] = False,
    as_json: AsJson = False,
    runs: RunsRoot = Path("runs"),
) -> None:
    """All about one turn, down to what the loss saw of each token."""
    from openclaw_core.inspection.flat import flat, json_safe
    from openclaw_core.inspection.reader import LedgerReader
    from openclaw_core.inspection.showing import Shown, turn_view
    from openclaw_core.inspection.vocabulary import token_names
    from openclaw_core.weights.layout import hf_directory

    directory = existing_run(run, runs)
    with LedgerReader(directory.ledger_file) as ledger:
        record = ledger.turn(turn)
        step = None if record.step is None else ledger.step(record.step)
        outcomes = ledger.outcomes(record.turn.session_id)
    tokens, why = _tokens(directory, record)
    if as_json:
        typer.echo(json.dumps(json_safe(flat(record, tokens))))
        return
    names = token_names(hf_directory(directory.config()))
    _print(turn_view(Shown(record, step, outcomes, tokens, why), names, full=full))


@app.command("export")
def export_turns(
    run: RunName,
    out: Annotated[Path, typer.Option(help="File to write, .parquet or .jsonl; it must not exist.")],
    session: Session = None,
    step: Step = None,
    status: Status = None,
    drop_reason: Reason = None,
    reward: Reward = None,
    min_version: MinVersion = None,
    max_version: MaxVersion = None,
    text: Search = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many; default: all.")] = None,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="Else in the order of capture.")] = False,
    tables: Annotated[bool, typer.Option(help="With the per-token tables of the steps that have one.")] = True,
    runs: RunsRoot = Path("runs"),
) -> None:
    """Write turns with their judgements and per-token tables to a file."""
    from openclaw_core.inspection.export import export
    from openclaw_core.inspection.flat import flat
    from openclaw_core.inspection.reader import LedgerReader, TurnFilter

    directory = existing_run(run, runs)
    wanted = TurnFilter(session, step, status, drop_reason, reward, min_version, max_version, text)
    tokens_of = _tables_of(directory) if tables else lambda _: None
    with LedgerReader(directory.ledger_file) as ledger:
        records = ledger.turns(wanted, limit=limit, newest_first=newest_first)
        with contextlib.closing(records):
            count = export((flat(record, tokens_of(record)) for record in records), out)
    typer.echo(f"{out}: {count} turns")


def _tokens(run: RunDir, record: TurnRecord) -> tuple[SampleTokens | None, str]:
    """A turn's table, or None and why there is none."""
    from openclaw_core.inspection.tables import TokenTables

    if record.status not in (TurnStatus.TRAINED, TurnStatus.SKIPPED) or record.step is None:
        return None, "The turn was in no training step: the loss has seen nothing of it."
    tables = TokenTables(run.tables)
    table = tables.read(record.step)
    if table is None:
        there = tables.steps()
        kept = f"steps {there[0]} to {there[-1]} have one" if there else "no step has one"
        return None, f"Step {record.step} has no table; {kept} (train.token_tables says how many are kept)."
    tokens = table.of(record.turn.turn_id)
    if tokens is not None:
        return tokens, ""
    left_out = record.turn.turn_id in table.left_out
    return None, (
        f"Step {record.step}'s table left this turn out, being full."
        if left_out
        else f"Step {record.step}'s table has no rows of this turn: its micro-batch was not finite."
    )


def _tables_of(run: RunDir) -> Callable[[TurnRecord], SampleTokens | None]:
    """As ``_tokens``, for many turns: a few steps' tables are in memory at a time."""
    from openclaw_core.inspection.tables import TokenTables

    read = lru_cache(maxsize=4)(TokenTables(run.tables).read)

    def tokens_of(record: TurnRecord) -> SampleTokens | None:
        if record.status not in (TurnStatus.TRAINED, TurnStatus.SKIPPED) or record.step is None:
            return None
        table = read(record.step)
        return table and table.of(record.turn.turn_id)

    return tokens_of


def _print(what: RenderableType) -> None:
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
