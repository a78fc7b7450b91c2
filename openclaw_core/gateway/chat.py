"""One chat request from messages to answer: render, deliver the reaction, wait, sample, capture."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

import structlog

from openclaw_core.config import RunConfig
from openclaw_core.engines.protocol import Engine, EngineError, GenerateRequest, Generation
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.capture import TurnSink
from openclaw_core.gateway.errors import engine_failed, invalid, unknown_model
from openclaw_core.gateway.rendering import Answer, ChatRenderer, RenderError, Rendering
from openclaw_core.gateway.sampling import SamplingPolicy
from openclaw_core.gateway.schema import ChatRequest
from openclaw_core.gateway.sessions import Session, SessionBook
from openclaw_core.gateway.stopping import cut_at_stop
from openclaw_core.gateway.wire import Completion
from openclaw_core.types import Message, Sampling, Turn, TurnType

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GatewayDeps:
    """The parts that the gateway is made of. ``api_key`` comes from the run's secrets, ``sink`` takes captured turns."""

    config: RunConfig
    api_key: str
    renderer: ChatRenderer
    engine: Engine
    room: WaitingRoom
    sink: TurnSink


@dataclass(frozen=True, slots=True)
class Tags:
    """Whose turn a request is; a main turn has a session. ``done``: the turn being answered is its session's last."""

    turn_type: TurnType
    session_id: str | None
    done: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and what its headers say."""

    completion: Completion
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that has passed every check."""

    turn_id: str
    messages: tuple[Message, ...]
    rendering: Rendering
    sampling: Sampling


class ChatService:
    """Answers chat requests. A request that is refused has captured nothing."""

    def __init__(self, deps: GatewayDeps, sessions: SessionBook) -> None:
        self._model = deps.config.model.name
        self._context_length = deps.config.model.context_length
        self._policy = SamplingPolicy.of(deps.config.rollout)
        self._renderer, self._engine, self._room = deps.renderer, deps.engine, deps.room
        self._sessions = sessions

    async def answer(self, request: ChatRequest, messages: tuple[Message, ...], tags: Tags) -> Reply:
        """Sample the answer and, for a main turn, capture it. Raises ApiError."""
        job = self._prepare(request, messages, tags)
        if tags.turn_type is TurnType.MAIN:
            generation, answer, seconds = await self._answer_main(job, tags)
        else:
            async with self._room.admit(TurnType.SIDE):
                generation, answer, seconds = await self._generate(job)
            if tags.done and tags.session_id is not None:
                self._sessions.close(tags.session_id, None)
        log.info(
            "chat_answered",
            turn=job.turn_id,
            session=tags.session_id,
            turn_type=tags.turn_type.value,
            prompt_tokens=len(job.rendering.prompt_ids),
            completion_tokens=len(generation.token_ids),
            finish_reason=generation.finish_reason.value,
            version=generation.weight_version,
            generate_s=round(seconds, 3),
        )
        return self._reply(job, tags, generation, answer)

    async def _answer_main(self, job: _Job, tags: Tags) -> tuple[Generation, Answer, float]:
        """The reaction that the request brings is delivered before it waits; its turn is captured before it leaves."""
        assert tags.session_id is not None
        with self._sessions.request(tags.session_id, job.messages) as session:
            async with self._room.admit(TurnType.MAIN):
                generation, answer, seconds = await self._generate(job)
                self._capture(session, job, generation, answer, seconds, last=tags.done)
        return generation, answer, seconds

    def _prepare(self, request: ChatRequest, messages: tuple[Message, ...], tags: Tags) -> _Job:
        if request.model != self._model:
            raise unknown_model(request.model, self._model)
        try:
            rendering = self._renderer.render(messages)
        except RenderError as error:
            raise invalid(str(error), "messages") from error
        sampling = self._policy.choose(request, tags.turn_type, len(rendering.prompt_ids), self._context_length)
        return _Job(uuid.uuid4().hex, messages, rendering, sampling)

    async def _generate(self, job: _Job) -> tuple[Generation, Answer, float]:
        started = time.monotonic()
        prompt_ids = job.rendering.prompt_ids
        try:
            generation = await self._engine.generate(
                GenerateRequest(job.turn_id, prompt_ids, job.sampling, self._renderer.stop_token_ids)
            )
        except EngineError as error:
            log.error("engine_failed", turn=job.turn_id, error=str(error))
            raise engine_failed("The engine could not answer; nothing was captured, the request may be sent again.") from error
        seconds = time.monotonic() - started
        return *cut_at_stop(self._renderer, generation, prompt_ids, job.sampling.stop), seconds

    def _capture(
        self, session: Session, job: _Job, generation: Generation, answer: Answer, seconds: float, *, last: bool
    ) -> None:
        turn = Turn(
            turn_id=job.turn_id,
            session_id=session.session_id,
            index=session.next_index,
            messages=job.messages,
            answer=answer.text,
            prompt_ids=job.rendering.prompt_ids,
            response_ids=generation.token_ids,
            rollout_logprobs=generation.logprobs,
            sampling=job.sampling,
            weight_version=generation.weight_version,
            finish_reason=generation.finish_reason,
            hint_offset=job.rendering.hint_offset,
            created_at=time.time(),
            generate_s=seconds,
        )
        self._sessions.capture(session, turn, last=last)

    def _reply(self, job: _Job, tags: Tags, generation: Generation, answer: Answer) -> Reply:
        headers = {
            "x-openclaw-turn-type": tags.turn_type.value,
            "x-openclaw-weight-version": str(generation.weight_version),
            "x-openclaw-sampling": self._policy.describe(job.sampling, tags.turn_type),
        }
        if tags.turn_type is TurnType.MAIN:
            headers["x-openclaw-turn-id"] = job.turn_id
        completion = Completion(
            completion_id=f"chatcmpl-{job.turn_id}",
            model=self._model,
            created=int(time.time()),
            answer=answer,
            finish_reason=generation.finish_reason,
            prompt_tokens=len(job.rendering.prompt_ids),
            completion_tokens=len(generation.token_ids),
        )
        return Reply(completion, headers)
