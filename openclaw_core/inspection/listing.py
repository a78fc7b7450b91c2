"""Many turns at a glance."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from openclaw_core.inspection.reader import TurnRecord
from openclaw_core.inspection.text import one_line, printable

ID_CHARACTERS = 8
_EXCERPT = 160


def turns_table(records: Iterable[TurnRecord]) -> Table:
    """A row a turn: where it stands, its verdict, and the beginning of answer and next state."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in ("turn", "session", "#", "step", "ver", "r", "hints", "status"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=16, justify="left")
    table.add_column("answer → next state", ratio=1, overflow="fold")
    for record in records:
        turn, judgement = record.turn, record.judgement
        table.add_row(
            printable(turn.turn_id[:ID_CHARACTERS]),
            one_line(turn.session_id, 14),
            str(turn.index),
            dash(record.step),
            str(turn.weight_version),
            "-" if judgement is None else f"{judgement.reward:+d}",
            "-" if judgement is None else str(len(judgement.hints)),
            Text((record.drop_reason or record.status).value),
            _exchange(record),
        )
    return table


def dash(value: object) -> str:
    """A dash for what is not there."""
    return "-" if value is None else str(value)


def _exchange(record: TurnRecord) -> Text:
    answer = one_line(record.turn.answer, _EXCERPT // 2) or _calls(record)
    shown = Text(answer)
    if record.next_state is not None:
        shown.append(f"\n→ {record.next_state.role}: {one_line(record.next_state.text, _EXCERPT // 2)}", style="dim")
    return shown


def _calls(record: TurnRecord) -> str:
    names = (call.get("function", {}).get("name", "?") for call in record.turn.tool_calls)
    return f"calls {one_line(', '.join(names), _EXCERPT // 2)}" if record.turn.tool_calls else "(empty)"
