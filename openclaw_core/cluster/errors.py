"""The exception of this package."""

from __future__ import annotations

from openclaw_core.errors import OpenClawError


class ClusterError(OpenClawError):
    """A process, a port, the Ray head or a Ray job is not as it must be; the message says what to do."""
