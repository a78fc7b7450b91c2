"""The keys of a run's gateway: given out and taken back by name, and known to a gateway that is running."""

from __future__ import annotations

import contextlib
import fcntl
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace

import structlog

from openclaw_core.errors import OpenClawError
from openclaw_core.rundir import RunDir, RunDirError, write_secrets

log = structlog.get_logger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
OWN = "run"
"""Name of the run's own key, which its feeder and evaluation use."""


class KeyNameError(OpenClawError):
    """A key's name that is no plain name, is taken, or is not there."""


def add_key(run: RunDir, name: str) -> str:
    """Make a key, which is in secrets.json from now on; returns it. Raises KeyNameError."""
    if not NAME.fullmatch(name):
        raise KeyNameError(
            f"key name {name!r}: allowed are 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    with _changing(run):
        keys = run.secrets()
        if name in keys.all_keys:
            raise KeyNameError(f"run {run.run_id} has a key {name!r} already; choose another name, or remove that one first")
        key = f"sk-{secrets.token_urlsafe(24)}"
        write_secrets(run, replace(keys, named_keys={**keys.named_keys, name: key}))
    return key


def remove_key(run: RunDir, name: str) -> None:
    """Take a key back. Raises KeyNameError where there is none of that name, and for the run's own."""
    with _changing(run):
        keys = run.secrets()
        if name not in keys.named_keys:
            there = ", ".join(sorted(keys.named_keys)) or "none"
            why = "is the run's own and stays" if name == OWN else "is not there"
            raise KeyNameError(f"key {name!r} of run {run.run_id} {why}; keys that can be removed: {there}")
        write_secrets(run, replace(keys, named_keys={other: key for other, key in keys.named_keys.items() if other != name}))


class KeyFile:
    """Name → key as secrets.json has them now: it is read again whenever it has changed.

    A file that cannot be read later on changes nothing: the keys stay those that it last had.
    """

    def __init__(self, run: RunDir) -> None:
        """Raises RunDirError where there are no secrets."""
        self._run = run
        self._keys: Mapping[str, str] = run.secrets().all_keys
        self._read: tuple[int, ...] | None = None
        """Of the file that was read last, or could not be: each is looked at once."""

    def __call__(self) -> Mapping[str, str]:
        """The keys."""
        state = self._state()
        if state != self._read:
            self._read = state
            try:
                self._keys = self._run.secrets().all_keys
            except (OSError, RunDirError, ValueError, TypeError) as error:
                log.error("keys_not_read", path=str(self._run.secrets_file), reason=str(error))
        return self._keys

    def _state(self) -> tuple[int, ...] | None:
        """A file that replaces another has another inode; None where there is none."""
        try:
            found = self._run.secrets_file.stat()
        except FileNotFoundError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size


@contextlib.contextmanager
def _changing(run: RunDir) -> Iterator[None]:
    """One command at a time reads the keys and writes them back; the kernel releases it when its holder dies."""
    run.secrets()  # or it is no run
    with (run.path / ".secrets.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
