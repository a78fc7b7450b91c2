"""Free ports for tests that start real servers."""

from __future__ import annotations

import contextlib
import socket

from openclaw_core.config.schema import PortsConfig


def free_ports() -> dict[str, int]:
    """Overrides that give every port of a run a free one."""
    names = [f"ports.{name}" for name in PortsConfig.model_fields]
    with contextlib.ExitStack() as stack:
        # All are held at once, so that no two get the same.
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {name: probe.getsockname()[1] for name, probe in zip(names, probes, strict=True)}
