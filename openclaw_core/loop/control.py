"""The control API: how a driver (the Prefect flow, `openclaw-rl run`) asks the training service for the next phase.

Verbs are idempotent by step number, waits are bounded (long polling), and no tensor passes here. Of the turns two of a step do,
shortened, for people to read on the machine that drives the run: some 40 kB at most.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from openclaw_core.errors import OpenClawError
from openclaw_core.health import Health, Verdict
from openclaw_core.inspection.reader import LedgerReader
from openclaw_core.ledger import Outcome
from openclaw_core.loop.learner import Learner
from openclaw_core.loop.loop import Loop
from openclaw_core.loop.phases import PhaseConflict, PhaseRunner
from openclaw_core.report.samples import step_samples

log = structlog.get_logger(__name__)


class OutcomeBody(BaseModel):
    """How a persona found an answer."""

    model_config = ConfigDict(extra="forbid")
    persona: str
    satisfied: bool
    relevant: bool
    first: bool
    problem: int = Field(ge=0)
    """Number of the problem in the feeder's stream."""
    ground_truth: str | None = Field(default=None, max_length=10_000)
    """The problem's known answer: hints that quote it are refused. It goes to no gateway, persona or judge."""


@dataclass
class ServiceState:
    """What the service says of itself; ``loop`` is None until everything is loaded."""

    run_id: str
    steps: int
    batch_size: int
    token: str
    learner: Learner | None = None
    """There before ``loop``, while it restores the weights."""
    loop: Loop | None = None
    phases: PhaseRunner | None = None
    advice: Callable[[], str | None] = lambda: None
    """What to set so that more is learned from the requests that come."""
    engines: Callable[[], list[dict[str, Any]]] = list
    """What each engine is doing (Router.status)."""
    error: str | None = None
    """Why the start or the last phase failed."""
    shutdown: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """From here on the control API says that the service is stopping."""
        self.loop = self.phases = None
        self.error = "the service is stopping"

    def ready(self) -> tuple[Loop, PhaseRunner]:
        """Loop and phases, or 503 while the service is loading."""
        if self.loop is None or self.phases is None:
            raise HTTPException(503, self.error or "the service is still loading", headers={"Retry-After": "2"})
        return self.loop, self.phases

    def status(self) -> dict[str, Any]:
        """The body of GET /status."""
        head: dict[str, Any] = {"run_id": self.run_id, "steps": self.steps, "error": self.error}
        if self.loop is None or self.phases is None:
            batch = {"ready": 0, "size": self.batch_size, "in_flight": 0, "unanswered": 0, "judging": 0, "queued": 0}
            progress = {
                "step": 0,
                "next_step": 1,
                "phase": None,
                "version": 0,
                "accepting": False,
                "eta_s": None,
                "problems": 0,
                "sessions": {},
            }
            state = "failed" if self.error else "starting"
            return {
                **head,
                **progress,
                "state": state,
                "batch": batch,
                "engines": self.engines(),
                "judge": {"unavailable": 0, "away_s": 0.0, "alert": None},
                "metrics": {},
                "waiting_for": self._starting(),
                "advice": None,
                "health": Health(Verdict(0)).as_json(),
            }
        loop, next_step = self.loop, self.loop.ledger.next_step()
        last = loop.ledger.step(next_step - 1)
        return {
            **head,
            "state": "finished" if next_step > self.steps else "ready",
            "step": next_step - 1,
            "next_step": next_step,
            "problems": loop.ledger.problems(),
            "sessions": loop.ledger.sessions(),
            "phase": self.phases.current[1] if self.phases.current else None,
            "version": loop.version,
            "accepting": loop.room.accepting,
            "batch": {
                "ready": self.batch_size if loop.ledger.step(next_step) else min(loop.intake.ready, self.batch_size),
                "size": self.batch_size,
                "in_flight": loop.room.in_flight,
                "unanswered": loop.intake.waiting,
                "judging": loop.intake.judging,
                "queued": loop.room.queue,
            },
            "engines": self.engines(),
            "judge": loop.intake.judge.status(),
            "waiting_for": loop.waiting_for(),
            "advice": self.advice(),
            "metrics": last.metrics if last else {},
            "health": loop.health.as_json(),
            "eta_s": _time_left(loop, self.steps - next_step + 1),
        }

    def _starting(self) -> str:
        return (self.learner and self.learner.doing) or "the models to load"


def _time_left(loop: Loop, steps: int) -> float | None:
    """Seconds for ``steps`` more steps at the pace of the last five."""
    paces = [pace for record in loop.ledger.steps()[-6:] if (pace := record.metrics.get("perf/step_time"))][-5:]
    return sum(paces) / len(paces) * steps if paces else None


def create_control_app(service: ServiceState, export_dir: Path) -> FastAPI:
    """The control API of one service."""

    def authorised(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {service.token}".encode()):
            raise HTTPException(401, "wrong or missing control token; it is in the run's secrets.json")

    app = FastAPI(title="openclaw-rl control", dependencies=[Depends(authorised)], docs_url=None, redoc_url=None)

    @app.exception_handler(HTTPException)
    async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": {"message": error.detail}}, error.status_code, headers=error.headers)

    @app.get("/status")
    async def status() -> dict[str, Any]:
        return service.status()

    @app.get("/steps")
    async def steps(after: int = Query(0, ge=0), limit: int = Query(200, ge=1, le=500)) -> dict[str, Any]:
        loop, _ = service.ready()
        return {"rows": loop.metrics_file.rows(after, limit)}

    @app.get("/steps/{step}/samples")
    def samples(step: int) -> dict[str, Any]:  # in a thread, with a connection of its own: the ledger belongs to the loop's
        loop, _ = service.ready()
        with LedgerReader(loop.run.ledger_file) as reader:
            return {"samples": step_samples(reader, step)}

    @app.post("/steps/{step}/{phase}")
    async def run_phase(step: int, phase: str, wait_s: float = Query(30, ge=0, le=300)) -> dict[str, Any]:
        loop, phases = service.ready()
        try:
            result = await phases.run(step, phase, wait_s)
        except PhaseConflict as error:
            raise HTTPException(409, str(error)) from None
        except OpenClawError as error:
            log.error("phase_failed", step=step, phase=phase, reason=str(error))
            service.error = f"step {step}, {phase}: {error}"
            raise HTTPException(500, str(error)) from error
        service.error = None
        return {"step": step, "phase": phase, "done": result is not None, "result": result, "progress": loop.waiting_for()}

    @app.post("/sessions/{session_id}/outcome", status_code=204)
    async def outcome(session_id: str, body: OutcomeBody) -> None:
        loop, _ = service.ready()
        loop.ledger.add_outcome(Outcome(session_id, **body.model_dump()), loop.ledger.next_step())
        if body.ground_truth is not None:
            loop.intake.known_answer(session_id)

    @app.post("/export")
    async def export() -> dict[str, Any]:
        loop, _ = service.ready()
        checksum = await loop.learner.export(export_dir)
        return {"path": str(export_dir), "version": loop.version, "checksum": checksum}

    @app.post("/shutdown", status_code=202)
    async def shutdown() -> dict[str, Any]:
        service.shutdown.set()
        return {"stopping": True}

    return app
