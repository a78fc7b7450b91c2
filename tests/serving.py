"""An ASGI application on a loopback port, for tests whose client is a real one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

START_DEADLINE_S = 30.0


@contextlib.asynccontextmanager
async def serving_app(app: Any, port: int = 0) -> AsyncIterator[str]:
    """For the block's duration; its URL. 0: a port that the system picks."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server._serve())  # and not serve(), which takes the process's signals
    try:
        async with asyncio.timeout(START_DEADLINE_S):
            while not server.started:
                if task.done():
                    await task
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
