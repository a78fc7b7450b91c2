"""An idle connection stays open longer than clients keep one: none is closed while its next request is on its way."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI

from openclaw_core.loop.service import serving
from tests.gateway_parts import tiny_config
from tests.ports import free_ports

CLIENTS_KEEP_S = 5.5
"""httpx, and with it the openai client, lets go of a connection after 5 s; so does uvicorn where nothing is set."""


async def test_a_connection_that_was_idle_for_as_long_as_clients_keep_one_takes_the_next_request() -> None:
    app, port = FastAPI(), free_ports()["ports.gateway"]
    app.get("/")(lambda: "here")
    async with serving(app, tiny_config(ports__gateway=port), "gateway"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for pause_s in (0.0, CLIENTS_KEEP_S):
            await asyncio.sleep(pause_s)
            writer.write(b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n")
            assert (await reader.readuntil(b'"here"')).startswith(b"HTTP/1.1 200")
        writer.close()
