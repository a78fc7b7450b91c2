"""`openclaw-rl turns`: look at a run's turns, live or ended, without disturbing it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_core.cli_options import AsJson, RunName, RunsRoot
from openclaw_core.cli_output import examples, print_json, print_rich, say
from openclaw_core.ledger_rows import TurnStatus
from openclaw_core.types import DropReason

if TYPE_CHECKING:
    from openclaw_core.inspection.reader import TurnRecord
    from openclaw_core.rundir import RunDir
    from openclaw_core.trainer.token_table import SampleTokens

app = typer.Typer(help="Look at a run's turns, or export them.", no_args_is_help=True, rich_markup_mode=None)

Session = Annotated[str | None, typer.Option(metavar="ID", help="Of this session: its id, or its beginning.")]
Step = Annotated[int | None, typer.Option(min=1, metavar="N", help="In the batch of this step, or dropped in it.")]
Status = Annotated[TurnStatus | None, typer.Option(metavar="STATUS", help=f"Where the turn stands: {', '.join(TurnStatus)}.")]
Reason = Annotated[
    DropReason | None, typer.Option("--drop-reason", metavar="REASON", help=f"Why it was dropped: {', '.join(DropReason)}.")
]
Reward = Annotated[int | None, typer.Option(min=-1, max=1, metavar="N", help="The judge's verdict: -1, 0 or 1.")]
MinVersion = Annotated[int | None, typer.Option(min=0, metavar="N", help="Oldest token of this weight version or a later one.")]
MaxVersion = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Oldest token of this weight version or an earlier one.")
]
Search = Annotated[
    str | None, typer.Option("--text", metavar="TEXT", help="Said in messages, answer, next state or hints; any case.")
]
Oldest = Annotated[bool, typer.Option("--oldest-first", help="In the order of capture; else newest first.")]


@app.command("list", epilog=examples("turns list RUN --step 12 --reward -1", "turns list RUN --status dropped --json"))
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
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")] = 20,
    oldest_first: Oldest = False,
    runs: RunsRoot = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List turns, a line a turn.

    Where it stands, its verdict, answer and next state. With --json: {"turns": [...]}, each as in exports.
    """
    from openclaw_core.inspection.flat import flat, json_safe
    from openclaw_core.inspection.listing import turns_table
    from openclaw_core.inspection.reader import LedgerReader, TurnFilter
    from openclaw_core.rundir import existing_run

    wanted = TurnFilter(session, step, status, drop_reason, reward, min_version, max_version, text)
    with LedgerReader(existing_run(run, runs).ledger_file) as ledger:
        # All at once: a pager that is left open must not hold the ledger's log.
        records = list(ledger.turns(wanted, limit=limit, newest_first=not oldest_first))
    if as_json:
        print_json({"turns": [json_safe(flat(record, None)) for record in records]})
    elif records:
        print_rich(turns_table(records))
    else:
        say("no turn yet" if wanted == TurnFilter() else "no such turns")


@app.command("show", epilog=examples("turns show RUN 3f2a9c", "turns show RUN 3f2a9c --full"))
def show_turn(
    run: RunName,
    turn: Annotated[str, typer.Argument(metavar="TURN", help="The turn's id, or as much of it as is unique.")],
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing; the table has all tokens.")] = False,
    runs: RunsRoot = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show all about one turn.

    Down to what the loss saw of each token.
    """
    from openclaw_core.inspection.flat import flat, json_safe
    from openclaw_core.inspection.reader import LedgerReader
    from openclaw_core.inspection.showing import Shown, turn_view
    from openclaw_core.inspection.vocabulary import token_names
    from openclaw_core.rundir import existing_run
    from openclaw_core.weights.layout import hf_directory

    directory = existing_run(run, runs)
    with LedgerReader(directory.ledger_file) as ledger:
        record = ledger.turn(turn)
        step = None if record.step is None else ledger.step(record.step)
        outcomes = ledger.outcomes(record.turn.session_id)
    tokens, why = _tokens(directory, record)
    if as_json:
        print_json(json_safe(flat(record, tokens)))
        return
    names = token_names(hf_directory(directory.config()))
    print_rich(turn_view(Shown(record, step, outcomes, tokens, why), names, full=full))


@app.command("export", epilog=examples("turns export RUN --out turns.parquet"))
def export_turns(
    run: RunName,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write, .parquet or .jsonl; it must not exist.")],
    session: Session = None,
    step: Step = None,
    status: Status = None,
    drop_reason: Reason = None,
    reward: Reward = None,
    min_version: MinVersion = None,
    max_version: MaxVersion = None,
    text: Search = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many; default: all.")
    ] = None,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="Else in the order of capture.")] = False,
    tables: Annotated[bool, typer.Option(help="With the per-token tables of the steps that have one.")] = True,
    runs: RunsRoot = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write turns to a file.

    With their judgements and per-token tables.
    """
    from openclaw_core.inspection.export import export
    from openclaw_core.inspection.flat import flat
    from openclaw_core.inspection.reader import LedgerReader, TurnFilter
    from openclaw_core.rundir import existing_run

    directory = existing_run(run, runs)
    wanted = TurnFilter(session, step, status, drop_reason, reward, min_version, max_version, text)
    tokens_of = _tables_of(directory) if tables else lambda _: None
    with LedgerReader(directory.ledger_file) as ledger:
        records = ledger.turns(wanted, limit=limit, newest_first=newest_first)
        with contextlib.closing(records):
            count = export((flat(record, tokens_of(record)) for record in records), out)
    if as_json:
        print_json({"path": str(out), "turns": count})
    else:
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
