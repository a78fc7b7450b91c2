"""Free ports for tests that start real servers."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

from openclaw_core.config.schema import PortsConfig

BELOW_EPHEMERAL = range(12_000, 32_000)
"""Where Linux gives nobody a port who asks for any: between the choice of a port and its use a minute may pass, in which Ray
of another test asks for hundreds."""


def free_ports() -> dict[str, int]:
    """Overrides that give every port of a run a free one."""
    names = [f"ports.{name}" for name in PortsConfig.model_fields]
    with ExitStack() as stack:
        return {name: _held(stack) for name in names}  # all are held at once, so that no two get the same


def _held(stack: ExitStack) -> int:
    while True:
        port = random.SystemRandom().choice(BELOW_EPHEMERAL)  # not seeded: processes of pytest-xdist share their seeds
        try:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:  # taken
            continue
        return port
