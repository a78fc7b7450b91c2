"""One chat request from messages to answer: find its session, render, deliver the reaction, wait, sample, capture."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from openclaw_core.config import RunConfig
from openclaw_core.engines.protocol import Engine, GenerateRequest
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.answering import sample
from openclaw_core.gateway.bridging import Bridges
from openclaw_core.gateway.capture import TurnSink
from openclaw_core.gateway.clients import KeySource
from openclaw_core.gateway.errors import ApiError, invalid, unknown_model
from openclaw_core.gateway.metrics import GatewayMetrics
from openclaw_core.gateway.rendering import ChatRenderer, RenderError, Rendering
from openclaw_core.gateway.reply import Choice, Reply
from openclaw_core.gateway.sampling import SamplingPolicy
from openclaw_core.gateway.schema import ChatRequest, check_allowed, grammar_of, wants_side
from openclaw_core.gateway.sessions import Exchange, Origin, SessionBook
from openclaw_core.gateway.streaming import AnswerStream
from openclaw_core.gateway.wire import Envelope, tool_call_json
from openclaw_core.types import Message, Sampling, Turn, TurnType

log = structlog.get_logger()

_LONG_CHARS = 100_000


@dataclass(frozen=True, slots=True)
class GatewayDeps:
    """The parts that the gateway is made of. ``api_keys``: those that are valid now; ``sink`` takes captured turns."""

    config: RunConfig
    api_keys: KeySource
    renderer: ChatRenderer
    engine: Engine
    room: WaitingRoom
    sink: TurnSink


@dataclass(frozen=True, slots=True)
class Tags:
    """What a request says of itself. ``done``: the turn being answered is its session's last."""

    turn_type: TurnType | None
    """None where it does not say: main where it has a session, or one is inferred."""
    header: str | None = None
    metadata: str | None = None
    done: bool = False

    @property
    def unnamed(self) -> bool:
        """Whether it says nothing of a session, nor of a turn type."""
        return self.turn_type is None and not self.header and not self.metadata


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that has passed every check. ``exchange``: of a main turn."""

    turn_id: str
    request: ChatRequest
    messages: tuple[Message, ...]
    turn_type: TurnType
    session_id: str | None
    rendering: Rendering
    sampling: Sampling
    started: float
    exchange: Exchange | None = None


class ChatService:
    """Answers chat requests. A request that is refused has captured nothing."""

    def __init__(self, deps: GatewayDeps, sessions: SessionBook, metrics: GatewayMetrics) -> None:
        self._model = deps.config.model.served_as
        self._context_length = deps.config.model.context_length
        self._policy = SamplingPolicy.of(deps.config.rollout)
        self._renderer, self._engine, self._room = deps.renderer, deps.engine, deps.room
        self._bridges = Bridges(deps.renderer) if deps.config.gateway.history == "bridged" else None
        # A model that always thinks first would think in the grammar.
        self._grammars = deps.engine.grammars and not deps.renderer.always_reasons
        self._sessions, self._metrics = sessions, metrics

    @asynccontextmanager
    async def serve(self, request: ChatRequest, messages: tuple[Message, ...], tags: Tags) -> AsyncIterator[Reply]:
        """A reply that has begun; its main turn is captured while it is read. Raises ApiError.

        The reaction that a main request brings is delivered before it waits.
        """
        started = time.monotonic()
        rendering = await self._render(request, messages)
        # No await from here until the session is entered: two requests must not find the same turn waiting.
        side = tags.turn_type is TurnType.SIDE or (tags.unnamed and wants_side(request))
        origin = self._sessions.find(messages, header=tags.header, metadata=tags.metadata, user=request.user, side=side)
        turn_type = self._turn_type(tags, origin)
        check_allowed(request, turn_type, grammars=self._grammars)
        try:
            sampling = self._policy.choose(request, turn_type, len(rendering.prompt_ids), self._context_length)
        except ApiError:
            self._overflown(turn_type, origin)
            raise
        job = _Job(uuid.uuid4().hex, request, messages, turn_type, origin.session_id, rendering, sampling, started)
        if turn_type is TurnType.MAIN:
            with self._sessions.request(origin) as exchange:
                job = self._bridged(job, exchange)
                async with self._room.admit(TurnType.MAIN), aclosing(self._reply(job, tags.done)) as reply:
                    await reply.begin()
                    yield reply
        else:
            async with self._room.admit(TurnType.SIDE), aclosing(self._reply(job, tags.done)) as reply:
                await reply.begin()
                yield reply
            if tags.done and origin.session_id is not None:
                self._sessions.close(origin.session_id)

    @staticmethod
    def _turn_type(tags: Tags, origin: Origin) -> TurnType:
        """Main where there is a session, unless the client says otherwise. Raises ApiError where it asks for what cannot be."""
        if tags.turn_type is TurnType.MAIN and origin.session_id is None:
            raise invalid("A main turn needs a session: send X-Session-Id or metadata.session_id.", "X-Session-Id")
        if tags.done and origin.session_id is None:
            raise invalid("X-Session-Done ends no session: send X-Session-Id or metadata.session_id with it.", "X-Session-Done")
        return tags.turn_type or (TurnType.SIDE if origin.session_id is None else TurnType.MAIN)

    async def _render(self, request: ChatRequest, messages: tuple[Message, ...]) -> Rendering:
        """The prompt. A long one is rendered in a thread: a megabyte takes a second. Raises ApiError."""
        if request.model != self._model:
            raise unknown_model(request.model, self._model)
        long = sum(len(message["content"]) for message in messages) > _LONG_CHARS
        try:
            if long:
                return await asyncio.to_thread(self._renderer.render, messages, request.offered_tools)
            return self._renderer.render(messages, request.offered_tools)
        except RenderError as error:
            raise invalid(str(error), error.param) from error

    def _bridged(self, job: _Job, exchange: Exchange) -> _Job:
        """The job of a main turn, its prompt bridged where that is asked for and possible. Raises ApiError."""
        job = replace(job, exchange=exchange)
        if self._bridges is None or exchange.seen is None:
            return job
        rendering = self._bridges.prompt(exchange.seen.turn_id, job.messages, job.request.offered_tools)
        if rendering is None:
            return job
        sampling = self._policy.choose(job.request, TurnType.MAIN, len(rendering.prompt_ids), self._context_length)
        return replace(job, rendering=rendering, sampling=sampling)

    def _overflown(self, turn_type: TurnType, origin: Origin) -> None:
        """A history that does not fit ends its session; what it says about the last answer counts all the same."""
        self._metrics.overflows.inc()
        if turn_type is TurnType.MAIN and origin.session_id is not None:
            with self._sessions.request(origin):
                pass
            self._sessions.close(origin.session_id)

    def _reply(self, job: _Job, done: bool) -> Reply:
        def ended(choice: Choice) -> None:
            if job.exchange is not None:
                turn = _turn(job, job.exchange, choice)
                self._sessions.capture(job.exchange, turn, last=done)
                if self._bridges is not None:
                    self._bridges.remember(turn, job.rendering, job.request.offered_tools)
            self._count(job, choice)

        choices = [self._choice(job, index, ended) for index in range(job.request.n or 1)]
        headers = {
            "x-openclaw-turn-type": job.turn_type.value,
            "x-openclaw-sampling": self._policy.describe(job.sampling, job.turn_type),
        }
        if job.exchange is not None:
            headers |= {"x-openclaw-turn-id": job.turn_id, "x-openclaw-session-id": _printable(job.exchange.session_id)}
        envelope = Envelope(f"chatcmpl-{job.turn_id}", self._model, int(time.time()))
        return Reply(choices, envelope, headers, len(job.rendering.prompt_ids))

    def _choice(self, job: _Job, index: int, ended: Callable[[Choice], None]) -> Choice:
        """The ``index``-th of the answers asked for, each with random numbers of its own."""
        seed, prompt_ids = job.sampling.seed, job.rendering.prompt_ids
        request = GenerateRequest(
            job.turn_id if index == 0 else f"{job.turn_id}-{index}",
            prompt_ids,
            replace(job.sampling, seed=None if seed is None else seed + index),
            self._renderer.stop_token_ids,
            session_id=job.session_id,
            top_logprobs=job.request.top_logprobs or 0,
            grammar=grammar_of(job.request),
        )
        stream = AnswerStream(self._renderer, prompt_ids, job.sampling.stop, job.request.tool_mode)
        pieces = sample(self._engine, self._room, request, interrupted=self._metrics.interrupted.inc)
        first_token = self._metrics.first_token.labels(job.turn_type.value)
        return Choice(pieces, stream, ended, begun=lambda: first_token.observe(time.monotonic() - job.started))

    def _count(self, job: _Job, choice: Choice) -> None:
        sampled, turn_type, seconds = choice.sampled, job.turn_type.value, time.monotonic() - job.started
        finish_reason = str(sampled.finish_reason)
        self._metrics.answers.labels(finish_reason, turn_type).inc()
        self._metrics.tokens.labels("prompt", turn_type).inc(len(job.rendering.prompt_ids))
        self._metrics.tokens.labels("completion", turn_type).inc(len(sampled.tokens))
        self._metrics.whole.labels(turn_type).observe(seconds)
        log.info(
            "chat_answered",
            turn=job.turn_id,
            session=job.session_id,
            turn_type=turn_type,
            prompt_tokens=len(job.rendering.prompt_ids),
            completion_tokens=len(sampled.tokens),
            finish_reason=finish_reason,
            versions=sampled.version_spans,
            seconds=round(seconds, 3),
        )


def _turn(job: _Job, exchange: Exchange, choice: Choice) -> Turn:
    sampled, finished = choice.sampled, choice.finished
    assert finished is not None
    return Turn(
        turn_id=job.turn_id,
        session_id=exchange.session_id,
        index=exchange.index,
        messages=job.messages,
        answer=finished.answer.text,
        prompt_ids=job.rendering.prompt_ids,
        response_ids=sampled.token_ids,
        rollout_logprobs=sampled.logprobs,
        sampling=job.sampling,
        weight_version=min(sampled.versions),
        version_spans=sampled.version_spans,
        finish_reason=finished.finish_reason,
        hint_offset=job.rendering.hint_offset,
        created_at=time.time(),
        generate_s=time.monotonic() - job.started,
        tool_calls=tuple(tool_call_json(call) for call in finished.answer.tool_calls),
        user=job.request.user,
    )


def _printable(text: str) -> str:
    """For a header, which holds printable ASCII only."""
    return text.encode("ascii", "backslashreplace").decode().replace("\r", "").replace("\n", "")
