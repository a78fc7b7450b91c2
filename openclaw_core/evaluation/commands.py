"""The evaluations of a run, as `openclaw-rl evaluate` and the flow `evaluate` make them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_core.evaluation import tables
from openclaw_core.evaluation.convergence import SessionsReport
from openclaw_core.evaluation.following import follow
from openclaw_core.evaluation.heldout import evaluate
from openclaw_core.evaluation.record import EvaluationError
from openclaw_core.evaluation.report import EvalReport
from openclaw_core.evaluation.sessions import sessions_to_convergence, trials_beside
from openclaw_core.loop.client import ControlClient
from openclaw_core.rundir import RunDir


@dataclass(frozen=True)
class Findings:
    """What an evaluation found. ``tables``: titles and rows for people; ``body``: JSON-able, for programs."""

    tables: tuple[tuple[str, list[tables.Row]], ...]
    body: dict[str, Any]


def held_out(run: RunDir, label: str | None = None, against: str | None = None) -> Findings:
    """The held-out report ``label``, compared with the earlier one ``against`` if that is given.

    A report that is there already is taken as it is; else the run's gateway is asked. ``label``: default
    ``version-<the version that is served>``.

    Raises:
        EvaluationError: an earlier report that is missing, or prompts or a label that do not fit.
        ControlError, FeederError: the run is not alive, or its gateway refuses.
    """
    config = run.config()
    earlier = EvalReport.load(run.evaluation / f"{against}.json") if against is not None else None
    if label is None:
        with ControlClient.of(run, config) as control:
            label = f"version-{control.status(silence_s=2).version}"
    report = asyncio.run(evaluate(config, config.gateway_url, run.secrets().api_key, run.evaluation, label))
    title, rows = tables.held_out_title(report, earlier), tables.held_out_rows(report, earlier)
    return Findings(((title, rows),), tables.held_out_json(report, earlier))


def sessions(runs: Sequence[RunDir]) -> Findings:
    """Sessions to convergence of the runs' own sessions, each run a trial, and of the seeds that were asked beside them.

    Raises EvaluationError for a run without a ledger, and for runs that differ in personas or rules.
    """
    own, beside = sessions_to_convergence(runs), trials_beside(runs)
    reports = {"own_sessions": own} | ({"seeds_beside": beside} if beside is not None else {})
    return Findings(
        tuple((tables.session_title(report), tables.session_rows(report)) for report in reports.values()),
        {name: report.model_dump(mode="json") for name, report in reports.items()},
    )


def following(run: RunDir, seeds: int | None = None, stop_on: Sequence[signal.Signals] = ()) -> Findings:
    """Sessions to convergence of seeds that are asked beside a live run, until it has finished or a signal asks to stop.

    ``seeds``: default ``evaluation.convergence_seeds``; ``stop_on``: signals, where this is a main thread. Raises as
    ``follow``, and EvaluationError where nothing was asked.
    """
    report = asyncio.run(_follow(run, seeds, stop_on))
    if report is None:
        raise EvaluationError(f"run {run.run_id} began no session while it was followed; is its feeder running?")
    table = tables.session_title(report), tables.session_rows(report)
    return Findings((table,), {"seeds_beside": report.model_dump(mode="json")})


async def _follow(run: RunDir, seeds: int | None, stop_on: Sequence[signal.Signals]) -> SessionsReport | None:
    config, stop = run.config(), asyncio.Event()
    for name in stop_on:
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    with ControlClient.of(run, config) as control:
        return await follow(config, config.gateway_url, run.secrets().api_key, control, run.evaluation, stop, seeds)
