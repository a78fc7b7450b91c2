"""The routes. Each is served only where the version has it, with the methods that it has there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from tests.sglang_contract.contract import Contract, Refusal
from tests.sglang_contract.frontend import Frontend
from tests.sglang_contract.groups import Groups

Handler = Callable[[Request], Awaitable[Response]]

_HEALTH_S = 20.0
_HEALTH_POLL_S = 0.1


class ContractServer:
    """``settings``: the server's arguments, shown by /server_info."""

    def __init__(self, contract: Contract, frontend: Frontend, settings: dict[str, Any]) -> None:
        self.contract, self.frontend, self.scheduler = contract, frontend, frontend.scheduler
        self.settings = settings
        self._groups = Groups()
        self._session = False

    @property
    def version(self) -> str:
        """The weight version."""
        return self.settings["weight_version"]

    def app(self) -> FastAPI:
        """The application; the scheduler runs as long as it is served."""

        @contextlib.asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            running = asyncio.create_task(self.scheduler.run())
            yield
            running.cancel()

        app = FastAPI(lifespan=lifespan)
        handlers: dict[str, Handler] = {
            "/health": self.health,
            "/health_generate": self.health,
            "/ready": self.ready,
            "/server_info": self.server_info,
            "/get_server_info": self.server_info,
            "/model_info": self.model_info,
            "/weight_version": self.no_weight_version,
            "/get_weight_version": self.no_weight_version,
            "/generate": self.generate,
            "/abort_request": self.abort,
            "/flush_cache": self.flush,
            "/pause_generation": self.pause,
            "/continue_generation": self.resume,
            "/init_weights_update_group": self.join,
            "/destroy_weights_update_group": self.leave,
            "/begin_weight_update": self.begin,
            "/end_weight_update": self.end,
            "/update_weights_from_distributed": self.update,
            "/update_weight_version": self.set_version,
            "/weights_checker": self.checker,
        }
        routes = self.contract.facts["routes"]
        for path, handler in handlers.items():
            if path in routes:
                app.add_api_route(path, self._guarded(handler), methods=routes[path], response_model=None)
        return app

    def _guarded(self, handler: Handler) -> Handler:
        """Keys and refusals, as every route has them."""

        async def guarded(request: Request) -> Response:
            key = self.settings["api_key"]
            sent = request.headers.get("authorization", "").removeprefix("Bearer ")
            if key and not request.url.path.startswith("/health") and not secrets.compare_digest(sent, key):
                return JSONResponse({"error": "Unauthorized"}, 401)
            try:
                return await handler(request)
            except Refusal as refusal:
                return JSONResponse(refusal.body, refusal.status)
            except HTTPException as error:
                return JSONResponse(self.contract.error(error.status_code, error.detail), error.status_code)

        return guarded

    async def _body(self, request: Request, model: str) -> dict[str, Any]:
        try:
            body = json.loads(await request.body() or b"null")
        except ValueError as error:
            raise self.contract.invalid(f"the body is no JSON: {error}") from None
        return self.contract.parse(model, body)

    async def health(self, request: Request) -> Response:
        """Runs one token, behind the pause gate like any request."""
        (job,) = self.frontend.jobs({"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}})

        async def one() -> None:
            async for _ in self.frontend.answers(job, stream=False):
                return

        running = asyncio.create_task(one())
        try:
            await asyncio.wait_for(asyncio.shield(running), _HEALTH_S)
        except TimeoutError:
            return Response(status_code=503)
        finally:
            running.cancel()
        return Response(status_code=200)

    async def ready(self, request: Request) -> Response:
        return Response(status_code=503 if self.frontend.paused else 200)

    async def server_info(self, request: Request) -> Response:
        scheduler = {"max_req_input_len": self.scheduler.max_req_input_len, "internal_states": [{}]}
        return JSONResponse({"version": self.contract.version, **self.settings, **scheduler})

    async def model_info(self, request: Request) -> Response:
        model = self.scheduler.model
        known = {
            "model_path": self.settings["model_path"],
            "is_generation": True,
            "weight_version": self.version,
            "model_type": model.model_type,
            "architectures": model.architectures,
        }
        return JSONResponse({key: known.get(key) for key in self.contract.facts["model_info"]})

    async def no_weight_version(self, request: Request) -> Response:
        raise HTTPException(404, "deprecated; use /model_info")

    async def generate(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.contract.check_gate(body)
        if body.get("stream"):
            return StreamingResponse(self._stream(body), media_type="text/event-stream")
        try:
            jobs = self.frontend.jobs(body)
            answers = await asyncio.gather(*(self._whole(job) for job in jobs))
        except ValueError as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        return JSONResponse(answers if isinstance(body["input_ids"][0], list) else answers[0])

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        try:
            (job,) = self.frontend.jobs(body)
            async for piece in self.frontend.answers(job, stream=True):
                yield _event(piece)
        except ValueError as error:
            details = {"type": "invalid_request_error", "code": 400, "retryable": False} if self.contract.gated else {}
            yield _event({"error": {"message": str(error), **details}})
        yield b"data: [DONE]\n\n"

    async def _whole(self, job: Any) -> dict[str, Any]:
        answer = [piece async for piece in self.frontend.answers(job, stream=False)][-1]
        reason = answer["meta_info"]["finish_reason"]
        status = reason.get("status_code") if reason["type"] == "abort" else None
        if status == 400:
            raise ValueError(reason["message"])
        if status is not None:
            raise HTTPException(status, reason["message"])
        return answer

    async def abort(self, request: Request) -> Response:
        body = await self._body(request, "AbortReq")
        self.frontend.abort(body["rid"] or "", everything=body["abort_all"])
        return Response(status_code=200)

    async def flush(self, request: Request) -> Response:
        async with self.scheduler.exclusive:
            idle = self.scheduler.idle
        return PlainTextResponse("Cache flushed.\n" if idle else "Flush cache failed.\n", 200 if idle else 400)

    async def pause(self, request: Request) -> Response:
        body = await self._body(request, "PauseGenerationReqInput")
        assert body["mode"] == "abort", "the client under test uses no other mode"
        await self.frontend.pause()
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request: Request) -> Response:
        await self._body(request, "ContinueGenerationReqInput")
        await self.frontend.resume()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def join(self, request: Request) -> Response:
        body = await self._body(request, "InitWeightsUpdateGroupReqInput")
        async with self.scheduler.exclusive:
            try:
                await asyncio.to_thread(self._groups.join, body)
            except (RuntimeError, ValueError) as error:
                return _control(False, f"Failed to initialize custom process group: {error}.")
        return _control(True, "Succeeded to initialize custom process group.")

    async def leave(self, request: Request) -> Response:
        body = await self._body(request, "DestroyWeightsUpdateGroupReqInput")
        async with self.scheduler.exclusive:
            left = await asyncio.to_thread(self._groups.leave, body["group_name"])
        return _control(left, "Succeeded." if left else "The group to be destroyed does not exist.")

    async def begin(self, request: Request) -> Response:
        await self._body(request, "BeginWeightUpdateReqInput")
        if self._session:
            return _control(False, "a weight-update session is already open")
        self._session = True
        return _control(True, "Success")

    async def end(self, request: Request) -> Response:
        await self._body(request, "EndWeightUpdateReqInput")
        if not self._session:
            return _control(False, "no weight-update session is open")
        self._session = False
        return _control(True, "Success")

    async def update(self, request: Request) -> Response:
        """Refused without a session before the broadcast is joined: a sender that has begun would wait for ever."""
        body = await self._body(request, "UpdateWeightsFromDistributedReqInput")
        if self.contract.sessions and not self._session:
            return _control(False, "update_weights_from_distributed must run within a weight-update session")
        async with self.scheduler.exclusive:
            try:
                weights = await asyncio.to_thread(self._groups.receive, body)
                self.scheduler.model.load(weights)
            except KeyError as error:
                if body["group_name"] in str(error) and not self.contract.gated:
                    # An assertion in the scheduler, which takes the server with it.
                    os._exit(137)
                return _control(False, f"Failed to update parameter online: {error}. The weights are partially updated.")
            except RuntimeError as error:
                return _control(False, f"Failed to update parameter online: {error}. The weights are partially updated.")
            if body["flush_cache"] and not self.scheduler.idle:
                if not self.contract.gated:
                    os._exit(137)
                return _control(False, "Weights were updated, but the cache was not flushed.")
        if body["weight_version"] is not None:
            self.settings["weight_version"] = body["weight_version"]
        return _control(True, "Succeeded to update parameter online.")

    async def set_version(self, request: Request) -> Response:
        body = await self._body(request, "UpdateWeightVersionReqInput")
        if body["abort_all_requests"]:
            self.scheduler.abort("", everything=True)
        self.settings["weight_version"] = body["new_version"]
        return JSONResponse({"success": True, "message": "updated", "new_version": body["new_version"]})

    async def checker(self, request: Request) -> Response:
        body = await self._body(request, "CheckWeightsReqInput")
        if body["action"] not in self.contract.facts["checker_actions"]:
            return _control(False, f"Unsupported action={body['action']!r}")
        assert body["action"] == "checksum", "the client under test uses no other action"
        hashes = self.scheduler.model.hashes()
        rank = hashlib.sha256("".join(name + hashes[name] for name in sorted(hashes)).encode()).hexdigest()
        engine = hashlib.sha256(rank.encode()).hexdigest()
        ranks = [{"checksums": hashes, "per_gpu_checksum": rank, "parallelism_info": []}]
        return JSONResponse({"success": True, "message": "Success.", "ranks": ranks, "per_engine_checksum": engine})


def _control(success: bool, message: str) -> Response:
    return JSONResponse({"success": success, "message": message}, 200 if success else 400)


def _event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"
