"""What one running SGLang server can do, asked from the server and never guessed from a date or a name."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.sglang.http import Http

OLDEST = Version("0.5.10")
"""The oldest version whose routes and fields were read and recorded; older ones are refused."""

_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Of one server, from /server_info.

    What has no field there is found out by the first use: a route that answers 404 does not exist (the weight-update
    session, publishing.py).
    """

    version: str
    """As the server states it; a build from source may have one that is no release."""
    tensor_parallel: int
    grammars: bool
    """A grammar backend is loaded."""

    @classmethod
    async def detect(cls, http: Http) -> Capabilities:
        """Ask the server.

        Raises:
            EngineError: it does not answer, is older than OLDEST, or runs in a way that this client cannot publish to
                (data or pipeline parallel).
        """
        reply = await http.call("GET", "/server_info", _DEADLINE_S)
        if reply.status == 404:
            reply = await http.call("GET", "/get_server_info", _DEADLINE_S)
        if reply.fault is not None:
            raise reply.fault.error(f"{http.base_url}/server_info")
        info = reply.body
        if not isinstance(info, dict) or not isinstance(info.get("version"), str):
            raise EngineError(f"{http.base_url}/server_info states no version: this is no SGLang server")
        _refuse_old(http.base_url, info["version"])
        for field in ("dp_size", "pp_size"):
            if (size := info.get(field) or 1) != 1:
                raise EngineError(f"{http.base_url} runs with {field}={size}; weights can be published to {field}=1 only")
        return cls(
            version=info["version"],
            tensor_parallel=int(info.get("tp_size") or 1),
            grammars=info.get("grammar_backend") not in (None, "none"),
        )


def _refuse_old(url: str, text: str) -> None:
    try:
        version = Version(text)
    except InvalidVersion:
        return
    # A build from source counts as what it was built from: 0.0.0.dev stands for none.
    if version.release != (0, 0, 0) and version < OLDEST:
        raise EngineError(f"{url} is SGLang {text}; {OLDEST} is the oldest supported version")
