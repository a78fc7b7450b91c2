"""The per-token table of one turn in a terminal (ALGORITHM 2 to 6)."""

from __future__ import annotations

from collections import Counter

import numpy as np
from rich.table import Table
from rich.text import Text

from openclaw_core.inspection.text import printable, shortened
from openclaw_core.inspection.vocabulary import TokenNames
from openclaw_core.trainer.token_table import SampleTokens, TokenColumns

SCORER_NOISE = 1e-6
"""Nats between two passes of one policy from which on it is worth saying that there were two."""


def tokens_table(tokens: SampleTokens, names: TokenNames, rows: int) -> Table:
    """The first ``rows`` response positions: a line each, and one for each further id of its support."""
    columns = tokens.columns
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in ("t", "token", "log mu", "ell_old", "c·A", "c*", "O", "", "S_t", "pi_old", "pi_T", "delta", "w", "A_v"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("token", "", "S_t") else "right")
    for t in range(min(rows, len(columns.token))):
        support = np.flatnonzero(columns.support[t])
        sides = [_distilled(columns, t, int(k), names) for k in support] or [_nothing(columns, t)]
        for i, side in enumerate(sides):
            table.add_row(*(_position(columns, t, names) if i == 0 else [*[""] * 7, "│"]), *side)
    return table


def chosen(tokens: SampleTokens) -> Counter[int]:
    """At how many tokens each hint was c*, most first; empty where nothing was distilled."""
    return Counter(tokens.columns.hint.tolist()) if tokens.columns.ids.shape[1] else Counter()


def separate_scorer(tokens: SampleTokens) -> bool:
    """Whether delta is taken from another pass of the old policy than w and rho."""
    columns = tokens.columns
    gap = np.abs(columns.student_logp - columns.teacher_old_logp)[columns.support]
    return bool(gap.size and np.nanmax(gap, initial=0.0) > SCORER_NOISE)


def _position(columns: TokenColumns, t: int, names: TokenNames) -> list[Text | str]:
    hinted = columns.ids.shape[1] > 0
    return [
        str(t),
        _token(int(columns.token[t]), names),
        f"{columns.rollout_logp[t]:.3f}",
        f"{columns.old_logp[t]:.3f}",
        f"{columns.importance[t] * columns.advantage[t]:+.2f}" if columns.rewarded[t] else "-",
        str(columns.hint[t]) if hinted else "-",
        str(columns.overlap[t]) if hinted else "-",
        "│",
    ]


def _distilled(columns: TokenColumns, t: int, k: int, names: TokenNames) -> list[Text | str]:
    used = bool(columns.trained[t])
    return [
        _token(int(columns.ids[t, k]), names),
        f"{np.exp(columns.student_logp[t, k]):.4f}",
        f"{np.exp(columns.teacher_logp[t, k]):.4f}",
        f"{columns.delta[t, k]:+.3f}" if used else "-",
        f"{columns.weight[t, k]:.3f}" if used else "-",
        f"{columns.token_advantage[t, k]:+.3f}" if used else "-",
    ]


def _nothing(columns: TokenColumns, t: int) -> list[Text | str]:
    why = "empty" if columns.ids.shape[1] else "no hint"
    return [Text(f"({why})", style="dim"), *[""] * 5]


def _token(token: int, names: TokenNames) -> Text:
    return Text(f"{token:<6} {shortened(printable(names(token)), 10)}".rstrip())
