"""One SGLang server as an ``Engine``: exact ids in and out, log-probs of what was sampled, weights published into it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import structlog

from openclaw_core.cluster.places import Place
from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.protocol import EngineError, GenerateRequest, RequestRefused, Tokens
from openclaw_core.engines.sglang.capabilities import Capabilities
from openclaw_core.engines.sglang.command import BACKENDS, ServerAt, check_context_length, engine_command
from openclaw_core.engines.sglang.http import Http
from openclaw_core.engines.sglang.publish_types import Deadlines, State
from openclaw_core.engines.sglang.publishing import Publisher
from openclaw_core.engines.sglang.scoring import prefill_logprobs
from openclaw_core.engines.sglang.server import SGLangServer
from openclaw_core.engines.sglang.stream import AnswerReader
from openclaw_core.engines.sglang.where import engine_name
from openclaw_core.engines.sglang.wire import generate_body, penalty_restarts
from openclaw_core.weights.publish import PublishedWeights

log = structlog.get_logger(__name__)

_ABORT_S = 10.0
_VERSION_S = 10.0
_QUIET_S = 10.0
"""Without a sign of life for so long, a server is asked for its health before its version counts."""


class SGLangEngine:
    """An engine (``engines.protocol.OwnedEngine``) for one life of one server: after a restart of it, ``connect`` again.

    ``server``: the process, where this engine owns it. ``silence_s``: how long a request may go without a new token, queueing
    and a publish included. ``health_s``: how long a health check may take.
    """

    def __init__(
        self,
        http: Http,
        capabilities: Capabilities,
        publisher: Publisher,
        *,
        server: SGLangServer | None,
        silence_s: float,
        health_s: float,
    ) -> None:
        self._http = http
        self._publisher = publisher
        self._server = server
        self._silence_s = silence_s
        self._health_s = health_s
        self._alive_at = time.monotonic()
        self._aborts: set[asyncio.Task[None]] = set()
        self.capabilities = capabilities

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        backend: str,
        silence_s: float = 600,
        health_s: float = 30,
        deadlines: Deadlines | None = None,
        api_key: str | None = None,
        server: SGLangServer | None = None,
    ) -> SGLangEngine:
        """Find out what the server at ``url`` can do. ``backend`` of the broadcast group: gloo, nccl or hccl.

        Raises:
            EngineError: no answer, or a server that is not supported.
        """
        http = Http(url, api_key=api_key)
        try:
            capabilities = await Capabilities.detect(http)
        except BaseException:
            await http.close()
            raise
        # A name of its own: the sender may still have the group of an earlier life of this server.
        group = f"openclaw-{uuid.uuid4().hex[:12]}"
        publisher = Publisher(http, group=group, backend=backend, ranks=capabilities.tensor_parallel, deadlines=deadlines)
        log.info("sglang_connected", url=url, version=capabilities.version, ranks=capabilities.tensor_parallel)
        return cls(http, capabilities, publisher, server=server, silence_s=silence_s, health_s=health_s)

    @classmethod
    async def start(
        cls,
        config: RunConfig,
        directory: Path,
        *,
        index: int,
        place: Place,
        at: ServerAt,
        logs: Path,
    ) -> SGLangEngine:
        """Start server ``index`` of a run with the model in ``directory``, whose weights are version 0, and wait for it.

        ``directory`` and ``logs`` are paths in that place. A server that an earlier life of the run left there is ended first.

        Raises:
            EngineError: it does not start, does not serve by its deadline, or is not supported. Its process is ended then.
        """
        check_context_length(config, directory)
        sglang = config.engine.sglang
        url, name = at.url(sglang.port + index), engine_name(index)
        command = engine_command(config, directory, index=index, at=at)
        server = SGLangServer(
            name, command, url=url, place=place, log_file=logs / f"{name}.log", grace_s=sglang.stop_grace_s, key=at.key
        )
        await server.stop()
        await server.start()
        try:
            await server.wait_ready(sglang.start_deadline_s)
            return await cls.connect(
                url,
                backend=BACKENDS[sglang.device],
                silence_s=config.engine.deadline_s,
                health_s=sglang.health_s,
                deadlines=Deadlines.of(sglang),
                api_key=at.key.value if at.key is not None else None,
                server=server,
            )
        except BaseException:
            await asyncio.shield(server.stop())
            raise

    @property
    def grammars(self) -> bool:
        """See Engine: whether the server has a grammar backend."""
        return self.capabilities.grammars

    @property
    def state(self) -> State:
        """Where the server is between two versions."""
        return self._publisher.state

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        """See Engine. A request that is given up is aborted in the server at once, not only when it notices."""
        if request.grammar is not None and not self.grammars:
            raise RequestRefused(f"{self._http.base_url} has no grammar backend; {request.request_id} asks for a grammar")
        if penalty_restarts(request):
            log.warning("repetition_penalty_restarts", request=request.request_id, continued=request.continued)
        # Of fixed length: the server aborts by prefix. Unlike any earlier one: it refuses an id that is still in flight.
        rid = uuid.uuid4().hex
        reader = AnswerReader(f"{request.request_id} at {self._http.base_url}", wants_top=request.top_logprobs > 0)
        try:
            async with self._http.events("/generate", generate_body(request, rid), self._silence_s) as pieces:
                async for piece in pieces:
                    self._alive_at = time.monotonic()
                    for tokens in reader.take(piece):
                        yield tokens
                    if reader.fault is not None:
                        raise reader.fault.error(reader.what, begun=reader.count > 0)
                    if reader.finished:
                        return
            raise EngineError(f"{reader.what}: the stream ended after {reader.count} tokens without a finish_reason")
        finally:
            if not reader.finished:
                self._abort(rid)

    async def prefill_logprobs(
        self, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...], temperature: float
    ) -> tuple[float, ...]:
        """See Engine and scoring.py: one prefill at temperature 1 (or 0), a request a token at others."""
        return await prefill_logprobs(self._http, prompt_ids, response_ids, temperature, self._silence_s)

    async def pause(self) -> None:
        """See Engine."""
        await self._publisher.pause()

    async def resume(self) -> None:
        """See Engine. Raises EngineError where a load has failed."""
        await self._publisher.resume()

    async def load_weights(self, weights: PublishedWeights, version: int, checksum: str) -> None:
        """See Engine. ``weights``: the sender's side of the broadcast group. Raises EngineError, naming the state."""
        if weights.checksum != checksum:
            raise EngineError(f"version {version} was announced with checksum {checksum[:12]} and is {weights.checksum[:12]}")
        await self._publisher.load(weights, version)

    async def version(self) -> int:
        """See Engine.

        Raises:
            EngineError: mid-publish, after a failed one, where the server reports another version, or where it has given no
                sign of life for a while and is not healthy.
        """
        if not self._publisher.whole:
            raise EngineError(f"{self._http.base_url} is in state '{self.state}' and serves no version")
        reply = await self._http.call("GET", "/model_info", _VERSION_S)
        if reply.fault is not None:
            raise reply.fault.error(f"{self._http.base_url}/model_info")
        found: Any = reply.body.get("weight_version")
        if not isinstance(found, str) or not found.isdecimal():
            raise EngineError(f"{self._http.base_url} reports weight version {found!r}, which is no number")
        expected = self._publisher.version
        if expected is not None and int(found) != expected:
            raise EngineError(f"{self._http.base_url} serves version {found} after {expected} was published: it was restarted")
        await self._check_health()
        return int(found)

    async def _check_health(self) -> None:
        """The front of a server answers for a scheduler that is stuck. Its health check runs a token, so not while paused."""
        if self.state is not State.SERVING or time.monotonic() - self._alive_at < _QUIET_S:
            return
        pauses = self._publisher.pauses
        try:
            reply = await self._http.call("GET", "/health", self._health_s)
            failure = reply.fault.error(f"{self._http.base_url}/health") if reply.fault is not None else None
        except EngineError as error:
            failure = error
        if failure is None:
            self._alive_at = time.monotonic()
        elif self._publisher.pauses == pauses:
            raise failure

    async def close(self) -> None:
        """End the server, where this engine owns it, and close the connections."""
        await asyncio.gather(*self._aborts, return_exceptions=True)
        await self._http.close()
        if self._server is not None:
            await self._server.stop()

    def _abort(self, rid: str) -> None:
        """In a task of its own: whoever closes the iterator does not wait, and may be cancelled itself."""
        task = asyncio.create_task(self._send_abort(rid), name=f"abort-{rid}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, rid: str) -> None:
        try:
            await self._http.call("POST", "/abort_request", _ABORT_S, body={"rid": rid, "abort_all": False})
        except EngineError as error:
            # The closed connection ends it too, a little later.
            log.warning("abort_not_sent", rid=rid, error=str(error))
