"""A control API that keeps the contract over real HTTP and trains nothing: what drivers are tested against."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from openclaw_core.loop.client import PHASES

TOKEN = "stub-token"


class StubService:
    """``steps`` steps of five phases in order. Tests set ``polls`` and ``failures``, and read ``done``."""

    def __init__(self, steps: int = 3, token: str = TOKEN) -> None:
        self.steps = steps
        self.token = token
        self.done: list[tuple[int, str]] = []
        """Every phase that was executed, in order."""
        self.polls: dict[str, int] = {}
        """Answers "not yet" that a phase gives before it is done."""
        self.failures: dict[tuple[int, str], tuple[int, str]] = {}
        """(step, phase) → status and message of the error that it gives, once."""
        self.progress: Callable[[int], str] | None = None
        """What it says of a phase with so many polls to go."""
        self._server: uvicorn.Server | None = None

    @property
    def next_step(self) -> int:
        return 1 + sum(phase == "report" for _, phase in self.done)

    def status(self) -> dict[str, Any]:
        step = self.next_step - 1
        return {
            "run_id": "stub",
            "state": "finished" if step >= self.steps else "ready",
            "error": None,
            "step": step,
            "next_step": step + 1,
            "steps": self.steps,
            "phase": None,
            "batch": {"ready": 0, "size": 16, "in_flight": 0, "judging": 0},
            "version": step,
            "accepting": True,
            "metrics": self.metrics(step) if step else {},
            "eta_s": None,
            "waiting_for": "nothing",
        }

    def metrics(self, step: int) -> dict[str, Any]:
        """Of a step that is done."""
        return {"rollout/reward_mean": step / 10, "perf/step_time": 1.0}

    def rows(self, after: int = 0, limit: int = 200) -> dict[str, Any]:
        """GET /steps."""
        return {
            "rows": [{"step": step, "version": step, **self.metrics(step)} for step in range(after + 1, self.next_step)][:limit]
        }

    def samples(self, step: int) -> dict[str, Any]:
        """GET /steps/{step}/samples."""
        return {"samples": None}

    def run_phase(self, step: int, phase: str) -> dict[str, Any]:
        if failure := self.failures.pop((step, phase), None):
            raise HTTPException(*failure)
        if step != self.next_step:
            raise HTTPException(409, f"step {step} is not next; step {self.next_step} is")
        if self.polls.get(phase, 0) > 0:
            self.polls[phase] -= 1
            progress = self.progress(self.polls[phase]) if self.progress else f"{phase} needs more"
            return {"step": step, "phase": phase, "done": False, "result": None, "progress": progress}
        if (step, phase) not in self.done:
            before = PHASES[: PHASES.index(phase)]
            if missing := [earlier for earlier in before if (step, earlier) not in self.done]:
                raise HTTPException(409, f"{phase} before {missing[0]}")
            self.done.append((step, phase))
        result = {"phase": phase, "version": step}
        return {"step": step, "phase": phase, "done": True, "result": result, "progress": ""}

    def app(self) -> FastAPI:
        def authorised(request: Request) -> None:
            if request.headers.get("authorization") != f"Bearer {self.token}":
                raise HTTPException(401, "wrong or missing control token")

        app = FastAPI(dependencies=[Depends(authorised)])

        @app.exception_handler(HTTPException)
        async def _error(request: Request, error: HTTPException) -> JSONResponse:
            return JSONResponse({"error": {"message": error.detail}}, error.status_code)

        app.get("/status")(self.status)
        app.get("/steps")(self.rows)
        app.get("/steps/{step}/samples")(lambda step: self.samples(int(step)))
        app.post("/steps/{step}/{phase}")(self.run_phase)

        @app.post("/export")
        def export() -> dict[str, Any]:
            return {"path": "export", "version": self.next_step - 1, "checksum": "0"}

        @app.post("/shutdown", status_code=202)
        def shutdown() -> dict[str, Any]:
            """As the service: it answers, and is gone."""
            if self._server is not None:
                self._server.should_exit = True
            return {}

        return app

    @contextlib.contextmanager
    def serving(self, port: int = 0) -> Iterator[str]:
        """Serve in a thread; yields the URL."""
        config = uvicorn.Config(self.app(), host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)
        server = self._server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), f"cannot listen on port {port}"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
