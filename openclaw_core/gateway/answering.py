"""One answer's tokens, whatever happens to the engines: what a publish breaks off goes on with the new weights."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

import structlog

from openclaw_core.engines.protocol import (
    Engine,
    EngineAborted,
    EngineError,
    EngineFull,
    EngineLost,
    GenerateRequest,
    RequestRefused,
    Tokens,
)
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.errors import ApiError, engine_failed, held_too_long, invalid

log = structlog.get_logger()

MAX_LOSSES = 1
"""Engines that one answer may lose before it fails: a request that brings engines down must not bring down all of them."""


async def sample(
    engine: Engine, room: WaitingRoom, request: GenerateRequest, *, interrupted: Callable[[], None]
) -> AsyncGenerator[Tokens, None]:
    """The tokens of one answer, for a request that has been admitted. Raises ApiError.

    Where an engine breaks it off to take new weights, the ids so far become the prompt of the rest; each token says with
    which version it was sampled. ``interrupted`` is called each time.
    """
    sampled: list[int] = []
    losses = 0
    while True:
        try:
            async with aclosing(engine.generate(_rest(request, sampled))) as pieces:
                async for tokens in pieces:
                    sampled += tokens.token_ids
                    yield tokens
                    if tokens.finish_reason is not None:
                        return
            raise EngineError(f"request {request.request_id} ended without a reason after {len(sampled)} tokens")
        except EngineAborted:
            log.info("answer_interrupted", turn=request.request_id, tokens=len(sampled))
            interrupted()
            await room.reopened()
        except EngineLost as error:
            losses += 1
            if losses > MAX_LOSSES:
                raise _failed(request, len(sampled), error) from error
            interrupted()
            log.warning("answer_moves", turn=request.request_id, tokens=len(sampled), reason=str(error))
        except RequestRefused as error:
            raise invalid(f"The engine refuses this request: {error}", "messages") from error
        except EngineFull as error:
            raise held_too_long("The engines have no room for another request; try again later.") from error
        except EngineError as error:
            raise _failed(request, len(sampled), error) from error


def _failed(request: GenerateRequest, tokens: int, error: EngineError) -> ApiError:
    log.error("engine_failed", turn=request.request_id, tokens=tokens, error=str(error))
    return engine_failed("The engine could not answer; nothing was captured, the request may be sent again.")


def _rest(request: GenerateRequest, sampled: list[int]) -> GenerateRequest:
    """The request for what comes after the ids sampled so far."""
    if not sampled:
        return request
    left = request.sampling.max_new_tokens - len(sampled)
    return replace(
        request,
        input_ids=(*request.input_ids, *sampled),
        continued=len(sampled),
        sampling=replace(request.sampling, max_new_tokens=left),
    )
