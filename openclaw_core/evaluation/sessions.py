"""Sessions to convergence of training runs, from their ledgers: the first answers of the runs' own sessions."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from openclaw_core.config.feedback import EvaluationConfig
from openclaw_core.evaluation.convergence import Observed, SessionsReport
from openclaw_core.evaluation.record import EvaluationError
from openclaw_core.evaluation.trials import Trials
from openclaw_core.rundir import RunDir

# A turn is stored when it is answered, so a session begins `generate_s` before its first turn's `created_at`.
# With MIN, SQLite takes the other columns from the row that holds the minimum.
_FIRST_ANSWERS = """
SELECT o.session_id, o.persona, o.satisfied AND o.relevant, t.began
FROM (SELECT session_id, persona, satisfied, relevant, MIN(seq) FROM outcomes WHERE first GROUP BY session_id) o
LEFT JOIN (
    SELECT session_id, MIN(seq), json_extract(body, '$.created_at') - json_extract(body, '$.generate_s') AS began
    FROM turns GROUP BY session_id
) t USING (session_id)
ORDER BY t.began
"""


def sessions_to_convergence(runs: Sequence[RunDir]) -> SessionsReport:
    """Each run is a trial; its ledger is read only, also while it trains.

    Raises:
        EvaluationError: a run without a ledger, or runs with other personas or rules than the first.
        RunDirError: no run directory.
    """
    rule = _one_rule(runs)
    answers = [(run.run_id, first_answers(run.ledger_file, run.config().feeder.personas)) for run in runs]
    return SessionsReport.of(answers, rule)


def trials_beside(runs: Sequence[RunDir]) -> SessionsReport | None:
    """The same for the seeds that were asked beside the runs (following.py); None where none was. Raises likewise."""
    rule = _one_rule(runs)
    answers: list[tuple[str, dict[str, list[Observed]]]] = []
    for run in runs:
        trials = Trials.open(run.evaluation, run.config().feeder.personas, rule)
        answers += [(f"{run.run_id}/{name}", found) for name, found in trials.answers().items()]
    return SessionsReport.of(answers, rule) if answers else None


def _one_rule(runs: Sequence[RunDir]) -> EvaluationConfig:
    if not runs:
        raise EvaluationError("name one run at least")
    rule, *others = [run.config().evaluation for run in runs]
    for run, there in zip(runs[1:], others, strict=True):
        if (there.consecutive, there.max_sessions) != (rule.consecutive, rule.max_sessions):
            raise EvaluationError(
                f"{runs[0].run_id} and {run.run_id} have other rules: evaluation.consecutive {rule.consecutive} and "
                f"{there.consecutive}, max_sessions {rule.max_sessions} and {there.max_sessions}; evaluate them apart"
            )
    return rule


def first_answers(ledger_file: Path, personas: Sequence[str]) -> dict[str, list[bool]]:
    """Whether each session's first answer met the persona's rule (style and relevance), in the order in which they began.

    Raises EvaluationError where the file is no ledger, or tells of a persona or a session that the run does not have.
    """
    answers: dict[str, list[bool]] = {persona: [] for persona in personas}
    for session, persona, satisfied, began in _read(ledger_file):
        if persona not in answers:
            raise EvaluationError(
                f"{ledger_file}: session {session} is of persona {persona!r}, which is none of the run's: {', '.join(personas)}"
            )
        if began is None:
            raise EvaluationError(
                f"{ledger_file}: the feeder told how session {session} was answered, but none of its turns was captured, so "
                "its place among the sessions is unknown; send X-Session-Id with the id that outcomes are posted under"
            )
        answers[persona].append(bool(satisfied))
    return answers


def _read(ledger_file: Path) -> list[tuple[str, str, int, float | None]]:
    if not ledger_file.exists():
        raise EvaluationError(
            f"{ledger_file} does not exist: the run has not started its service yet, or had it on another machine"
        )
    try:
        with closing(sqlite3.connect(f"file:{quote(str(ledger_file.absolute()))}?mode=ro", uri=True)) as connection:
            return connection.execute(_FIRST_ANSWERS).fetchall()
    except sqlite3.Error as error:
        raise EvaluationError(f"{ledger_file} cannot be read as a ledger: {error}") from error
