"""Conversations through the real openclaw CLI: one process a turn, file tools in a folder that a task's people share.

A failed turn leaves its message in the CLI's transcript, where the next request would find it once more. So the session store
is put back as it was before the turn is tried again; files that tools have written by then stay.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import structlog

from openclaw_core.config.feedback import OpenClawCLIConfig
from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.backoff import Backoff, Unavailable
from openclaw_core.feeder.client import Answer, GatewayClient
from openclaw_core.feeder.errors import FeederError, TaskFailed
from openclaw_core.feeder.openclaw_config import AGENT, Gateway, StateDir, cli_config, environment
from openclaw_core.feeder.openclaw_install import Installation
from openclaw_core.feeder.openclaw_process import GRACE_S, run_process
from openclaw_core.feeder.openclaw_turn import assistant_entries, read_turn

log = structlog.get_logger()

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_KEY_TAKEN_OUT = b"(API key taken out)"


class OpenClawDriver:
    """A ``feeder.driver.Driver`` over ``openclaw agent --local --json``, version 2026.3.31.

    ``base_url`` ends in ``/v1``. At most ``feeder.cli.max_at_once`` processes run together, whatever the number of tasks.

    Raises:
        FeederError: the CLI or its Node is missing or of another version; nothing was started.
    """

    def __init__(self, config: RunConfig, base_url: str, api_key: str) -> None:
        cli = config.feeder.cli
        installation = Installation.find(cli)
        if cli.state is not None:
            cli.state.mkdir(parents=True, exist_ok=True)
        self._root = Path(tempfile.mkdtemp(prefix="openclaw-rl-", dir=cli.state)).resolve()
        self._client = GatewayClient(config, base_url, api_key)
        # As patient as GatewayClient with a gateway that is away, training or publishing.
        patience_s = config.rollout.hold_max_s + config.engine.deadline_s + config.cluster.start_deadline_s
        self._parts = _Parts(
            config,
            cli,
            Gateway(base_url, api_key),
            installation,
            (cli.state or self._root).resolve() / "node-cache",
            self._client,
            asyncio.Semaphore(cli.max_at_once),
            Backoff(deadline_s=patience_s),
        )
        self._tasks = 0

    @asynccontextmanager
    async def task(self, task_id: str, files: Mapping[str, str]) -> AsyncIterator[_TaskSpace]:
        """See Driver: the files are there for the assistant's tools. Raises FeederError for a name that leads elsewhere."""
        self._tasks += 1
        folder = self._root / f"task-{self._tasks:05d}"
        space = _TaskSpace(self._parts, folder)
        await asyncio.to_thread(_write_files, space.workspace, files)
        log.debug("openclaw_task", task=task_id, folder=str(folder))
        try:
            yield space
        finally:
            if not space.kept:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def aclose(self) -> None:
        """Close the connection and remove every folder that is not to be kept."""
        await self._client.aclose()
        await asyncio.to_thread(shutil.rmtree, self._root / "node-cache", ignore_errors=True)
        if not any(self._root.iterdir()):
            self._root.rmdir()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What all conversations of a driver use."""

    config: RunConfig
    cli: OpenClawCLIConfig
    gateway: Gateway
    installation: Installation
    node_cache: Path
    client: GatewayClient
    places: asyncio.Semaphore
    backoff: Backoff


@dataclass(slots=True)
class _TaskSpace:
    """A task's folder: its people's state folders, and the workspace that they share."""

    parts: _Parts
    folder: Path
    sessions: int = 0
    kept: list[Path] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @asynccontextmanager
    async def converse(self, session_id: str) -> AsyncIterator[_Conversation]:
        """See TaskSpace. Raises FeederError for an id that the CLI cannot have."""
        if _SESSION_ID.fullmatch(session_id) is None:
            raise FeederError(f"{session_id!r} is no session id for the openclaw CLI: letters, digits, . _ - only, up to 128")
        self.sessions += 1
        state = StateDir(self.folder / f"session-{self.sessions}")
        state.create(cli_config(self.parts.config, self.parts.gateway, self.workspace))
        failed = False
        try:
            yield _Conversation(self.parts, session_id, state, self.workspace)
        except Exception:
            failed = True
            raise
        finally:
            keep = self.parts.cli.keep_state
            if keep == "always" or (keep == "failed" and failed):
                self.kept.append(state.path)
                await asyncio.to_thread(_take_out, state.path, self.parts.gateway.api_key)
                log.info("openclaw_state_kept", session=session_id, folder=str(state.path))
            else:
                await asyncio.to_thread(shutil.rmtree, state.path, ignore_errors=True)


@dataclass(slots=True)
class _Conversation:
    """One session with the assistant, in a state folder of its own."""

    parts: _Parts
    session_id: str
    state: StateDir
    workspace: Path
    tries: int = 0

    async def say(self, message: str) -> Answer:
        """See Conversation. A gateway that is away or full is asked again, as a new turn."""
        try:
            return await self.parts.backoff.run("openclaw turn", lambda: self._turn(message))
        except Unavailable as error:
            patience_s = self.parts.backoff.deadline_s
            raise TaskFailed(f"a turn of the openclaw CLI failed for {patience_s:g} s: {error}") from error

    async def close(self, message: str | None) -> None:
        """See Conversation."""
        await self.parts.client.close_session(self.session_id, message)

    async def _turn(self, message: str) -> Answer:
        async with self.parts.places:
            self.tries += 1
            before = self.state.path / "before"
            _replace(before, self.state.sessions)
            known = {entry.id for entry in assistant_entries(self.state.sessions)}
            try:
                finished = await run_process(
                    self._command(message),
                    env=environment(self.parts.installation, self.state, self.parts.node_cache),
                    folder=self.workspace,
                    output=self.state.path / f"turn-{self.tries:03d}",
                    deadline_s=self.parts.cli.timeout_s + GRACE_S,
                )
                return read_turn(finished, self.state.sessions, known)
            except Exception:
                _replace(self.state.sessions, before)
                raise

    def _command(self, message: str) -> list[str | Path]:
        """The key is not on it; the message is, as ``--message=``: it may begin with a dash."""
        program = [self.parts.installation.node, self.parts.installation.script]
        options = ["--agent", AGENT, "--session-id", self.session_id, "--timeout", str(self.parts.cli.timeout_s)]
        return [*program, "agent", "--local", "--json", *options, f"--message={message}"]


def _replace(target: Path, source: Path) -> None:
    """Make ``target`` a copy of ``source``: absent where that is absent."""
    shutil.rmtree(target, ignore_errors=True)
    if source.exists():
        shutil.copytree(source, target)


def _write_files(workspace: Path, files: Mapping[str, str]) -> None:
    workspace.mkdir(mode=0o700, parents=True)
    for name, text in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise FeederError(f"{name!r} is no file in a task's folder; give a relative name without ..")
        file = workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _take_out(folder: Path, key: str) -> None:
    """Replace the key in every file of a folder that is kept: the CLI copies it into files of its own."""
    for file in folder.rglob("*"):
        if file.is_file() and key.encode() in (content := file.read_bytes()):
            file.write_bytes(content.replace(key.encode(), _KEY_TAKEN_OUT))
