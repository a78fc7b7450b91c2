"""New weights into one SGLang server: a state machine with a deadline for every transition.

    serving → paused → flushed → session open → sending k/n → session closed → verified → serving

A failure leaves it in ``failed``: the server stays paused, since its weights may be a mixture of two versions, and only a
complete load leads back. The weights come over a broadcast group of the sender (rank 0) and the server's ranks, which is
joined once and reused; its rendezvous is a TCP store at the sender's address with the group's name as prefix.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

import structlog

from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.sglang.checksums import Checksums
from openclaw_core.engines.sglang.http import Http, Reply
from openclaw_core.engines.sglang.publish_types import Deadlines, State
from openclaw_core.errors import OpenClawError
from openclaw_core.weights.publish import PublishedWeights

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FLUSH_RETRY_S = 0.2
_WHOLE = (State.SERVING, State.PAUSED, State.FLUSHED, State.VERIFIED)


class Publisher:
    """The publishing side of one server's life; a server that was restarted needs a new one.

    ``group``: name of the broadcast group, unlike that of any other engine. ``backend``: gloo, nccl or hccl.
    ``ranks``: tensor-parallel ranks of the server.
    """

    def __init__(self, http: Http, *, group: str, backend: str, ranks: int, deadlines: Deadlines | None = None) -> None:
        self._http = http
        self._group_name = group
        self._broken = 0
        self._backend = backend
        self._ranks = ranks
        self._deadlines = deadlines or Deadlines()
        self._address: tuple[str, int] | None = None
        self._sessions: bool | None = None
        self._checksums = Checksums()
        self.state = State.SERVING
        self.pauses = 0
        """How many times it was paused."""
        self.failed_at: str | None = None
        """What was being done when a transition failed; None again after a complete load."""
        self.version: int | None = None
        """Of the last complete load."""
        self.seconds: dict[str, float] = {}
        """How long each transition of the last publish took."""

    async def pause(self) -> None:
        """End what runs or waits, with finish_reason abort, and hold what comes. Twice is once. Raises EngineError."""
        if self.state is not State.SERVING:
            return
        self.seconds = {}
        self.pauses += 1
        await self._transition("pause", State.PAUSED, self._pause())

    async def load(self, weights: PublishedWeights, version: int) -> None:
        """Replace all weights, between ``pause`` and ``resume``.

        Raises:
            EngineError: any step failed or ran into its deadline; the message names the state. Not resumable then.
        """
        if self.state is State.SERVING:
            raise EngineError(f"{self._what} is serving; pause it before new weights are loaded")
        if self.state is State.FAILED:
            # The server may be in any state; pausing and closing a session that is not open change nothing.
            await self._transition("pause again", State.PAUSED, self._pause())
            await self._transition("close the old session", State.PAUSED, self._close_session(checked=False))
        await self._transition("flush", State.FLUSHED, self._flush())
        await self._transition("join the broadcast group", State.FLUSHED, self._join(weights))
        await self._transition("open the session", State.SESSION_OPEN, self._open_session())
        for bucket in range(len(weights.buckets)):
            name = f"send bucket {bucket + 1}/{len(weights.buckets)}"
            await self._transition(name, State.SENDING, self._send(weights, bucket, version), weights=weights)
        await self._transition("close the session", State.SESSION_CLOSED, self._close_session(checked=True))
        await self._transition("verify", State.VERIFIED, self._verify(weights, version))
        self.version = version
        self.failed_at = None
        log.info("weights_published", server=self._http.base_url, version=version, seconds=self.seconds)

    async def resume(self) -> None:
        """Serve again. Twice is once. Raises EngineError: its weights are not ``whole``, or the server did not answer."""
        if self.state is State.SERVING:
            return
        if not self.whole:
            why = f"a publish failed at '{self.failed_at}'" if self.failed_at else f"a load is in state '{self.state}'"
            raise EngineError(
                f"{self._what} does not resume: {why}, so its weights may be a mixture of versions; load a complete set, or "
                "restart it"
            )
        await self._transition("resume", State.SERVING, self._resume())

    @property
    def whole(self) -> bool:
        """Whether its weights are one version: since the last whole load nothing was sent and nothing failed."""
        return self.failed_at is None and self.state in _WHOLE

    @property
    def _group(self) -> str:
        return f"{self._group_name}-{self._broken}"

    @property
    def _what(self) -> str:
        return f"SGLang at {self._http.base_url}"

    async def _transition(
        self, name: str, reached: State, work: Awaitable[None], *, weights: PublishedWeights | None = None
    ) -> None:
        began, left = time.monotonic(), self.state
        try:
            await work
        except BaseException as error:
            self.state, self.failed_at = State.FAILED, name
            if weights is not None:
                await asyncio.shield(self._leave(weights))
            if not isinstance(error, EngineError):
                raise
            raise EngineError(f"{self._what}: '{name}' failed in state '{left}': {error}") from error
        self.state = reached
        self.seconds[name] = round(time.monotonic() - began, 3)

    async def _pause(self) -> None:
        self._accept(await self._http.call("POST", "/pause_generation", self._deadlines.pause_s, body={"mode": "abort"}))

    async def _resume(self) -> None:
        self._accept(await self._http.call("POST", "/continue_generation", self._deadlines.resume_s, body={}))

    async def _flush(self) -> None:
        """400 while an aborted request is still on its way out: asked again until the deadline."""
        deadline = time.monotonic() + self._deadlines.flush_s
        while True:
            reply = await self._http.call("POST", "/flush_cache", self._deadlines.flush_s)
            if reply.fault is None:
                return
            if reply.status != 400 or time.monotonic() > deadline:
                raise reply.fault.error("/flush_cache")
            await asyncio.sleep(_FLUSH_RETRY_S)

    async def _join(self, weights: PublishedWeights) -> None:
        """Once. The sender's address tells whether its group still is the one that was joined; the server's version, whether
        it still is in it: a restarted server reports another, and 0.5.10 dies of a broadcast in a group that it has not joined.
        """
        size = self._ranks + 1
        if self._address is not None and await self._reported() != str(self.version):
            await self._leave(weights)
        address = await self._by(self._deadlines.join_s, "the sender to open the group", self._open(weights, size))
        if address == self._address:
            return
        if self._address is not None:
            await self._destroy()
        host, port = address
        body = {
            "master_address": host,
            "master_port": port,
            "rank_offset": 1,
            "world_size": size,
            "group_name": self._group,
            "backend": self._backend,
        }
        joining = self._http.call("POST", "/init_weights_update_group", self._deadlines.join_s, body=body)
        try:
            await self._both(joining, weights.group_joined(self._group), self._deadlines.join_s, "all to join the group")
        except BaseException:
            await asyncio.shield(self._leave(weights))
            raise
        self._address = address

    async def _open(self, weights: PublishedWeights, size: int) -> tuple[str, int]:
        return await weights.open_group(self._group, size, self._backend)

    async def _open_session(self) -> None:
        """Before any tensor is on its way: a server that wants a session refuses the update before it joins the broadcast."""
        if self._sessions is False:
            return
        reply = await self._http.call("POST", "/begin_weight_update", self._deadlines.session_s, body={})
        self._sessions = reply.status != 404
        if self._sessions:
            self._accept(reply)

    async def _close_session(self, *, checked: bool) -> None:
        if self._sessions is False:
            return
        reply = await self._http.call("POST", "/end_weight_update", self._deadlines.session_s, body={})
        if checked:
            self._accept(reply)
        elif reply.status not in (200, 400, 404):
            # 400: none was open. Anything else says that the server is not well.
            self._accept(reply)

    async def _send(self, weights: PublishedWeights, index: int, version: int) -> None:
        bucket = weights.buckets[index]
        body: dict[str, Any] = {
            "names": list(bucket.names),
            "dtypes": [str(dtype).removeprefix("torch.") for dtype in bucket.dtypes],
            "shapes": [list(shape) for shape in bucket.shapes],
            "group_name": self._group,
            # The cache was flushed; in 0.5.10 a flush in here that finds it busy ends the scheduler.
            "flush_cache": False,
            "abort_all_requests": False,
        }
        if index == len(weights.buckets) - 1:
            # Last: a server that has half of them must not report the new version.
            body["weight_version"] = str(version)
        receiving = self._http.call("POST", "/update_weights_from_distributed", self._deadlines.bucket_s, body=body)
        await self._both(receiving, weights.send(self._group, index), self._deadlines.bucket_s, f"bucket {index + 1}")

    async def _verify(self, weights: PublishedWeights, version: int) -> None:
        """The version read back, and the server's own checksum where it has one."""
        if (found := await self._reported()) != str(version):
            raise EngineError(f"it reports version {found!r} after version {version} was loaded")
        self._checksums.compare(weights, await self._own_checksum())

    async def _reported(self) -> Any:
        """The version that the server states."""
        reply = await self._http.call("GET", "/model_info", self._deadlines.verify_s)
        self._accept(reply)
        return reply.body.get("weight_version")

    async def _own_checksum(self) -> str | None:
        """None where the version has no such action (0.5.10 refuses it)."""
        reply = await self._http.call("POST", "/weights_checker", self._deadlines.verify_s, body={"action": "checksum"})
        if reply.fault is None:
            own = reply.body.get("per_engine_checksum")
            if isinstance(own, str):
                return own
        elif reply.status != 404 and "Unsupported action" not in reply.fault.message:
            raise reply.fault.error("/weights_checker")
        log.debug("no_checksum_in_server", server=self._http.base_url)
        return None

    async def _leave(self, weights: PublishedWeights) -> None:
        """After a broken broadcast the group is of no use: both sides drop it, and the next load joins another.

        Of another name: a side that could not drop it, because it is stuck in it, refuses that name.
        """
        for attempt in (weights.close_group(self._group), self._destroy()):
            try:
                async with asyncio.timeout(self._deadlines.session_s):
                    await attempt
            except (OpenClawError, TimeoutError) as error:
                log.warning("broadcast_group_left_open", group=self._group, error=str(error))
        self._address = None
        self._broken += 1

    async def _destroy(self) -> None:
        """400: it was not in one."""
        body = {"group_name": self._group}
        reply = await self._http.call("POST", "/destroy_weights_update_group", self._deadlines.session_s, body=body)
        if reply.fault is not None and reply.status != 400:
            raise reply.fault.error("/destroy_weights_update_group")

    async def _both(self, server: Awaitable[Reply], sender: Awaitable[None], deadline_s: float, what: str) -> None:
        """Both sides of a collective; the first failure ends the other, which would wait for ever."""
        receiving, sending = asyncio.ensure_future(server), asyncio.ensure_future(sender)

        async def accepted() -> None:
            self._accept(await receiving)

        checked = asyncio.ensure_future(accepted())
        try:
            await self._by(deadline_s, what, asyncio.gather(checked, sending))
        finally:
            for task in (checked, receiving, sending):
                task.cancel()
            await asyncio.gather(checked, receiving, sending, return_exceptions=True)

    async def _by(self, deadline_s: float, what: str, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(deadline_s):
                return await work
        except TimeoutError:
            raise EngineError(f"waited {deadline_s:g} s for {what}") from None
        except EngineError:
            raise
        except OpenClawError as error:
            # The sender's side, which is another package's.
            raise EngineError(f"{what}: {error}") from error

    @staticmethod
    def _accept(reply: Reply) -> None:
        if reply.fault is not None:
            raise EngineError(f"{reply.fault.message} (status {reply.status})")
