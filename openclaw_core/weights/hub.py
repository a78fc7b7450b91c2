"""A model of a Hugging Face hub → a directory beside its destination, whole and checked, or resumable.

A branch or tag is resolved to a commit once. The commit is kept with what has come, so that a second try goes on with the same
files, and in the marker of the finished model: what the branch becomes later is not taken.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_core.weights.child import Log
from openclaw_core.weights.errors import SourceError
from openclaw_core.weights.files import fsync, partial_name, read_json, remove, sha256, write_json
from openclaw_core.weights.hub_client import HubAccess, HubClient, HubFile, Listing, Pace

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
COMPANIONS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "LICENSE*")
"""Configuration, tokenizer and licence; of the top folder, for those below hold the same in other forms."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")

MARKER = "_SUCCESS"
"""In a whole directory: source, commit, and size and sha256 of each file."""
STATE = ".hub.json"
"""In an unfinished directory: which source and commit its files are of."""
AT_ONCE = 4
"""Files that come at the same time."""
SAY_EVERY_S = 10.0
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hugging Face hub; ``revision`` None is its main branch."""

    repository: str
    revision: str | None

    @property
    def asked(self) -> str:
        return self.revision or "main"

    def __str__(self) -> str:
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A directory that is whole but has not its name yet."""

    directory: Path
    commit: str
    files: dict[str, dict[str, Any]]
    """Name → bytes, sha256."""

    def finish(self, source: HubSource) -> None:
        """Write the marker. Until the directory has its name, a next try finds by it what this one was."""
        write_json(self.directory / MARKER, {"source": str(source), "commit": self.commit, "files": self.files})
        (self.directory / STATE).unlink()


def hub_access(mirrors: tuple[str, ...] = (), token: str | None = None) -> HubAccess:
    """The hub of HF_ENDPOINT or huggingface.co, then ``mirrors``; ``token``, or that of HF_TOKEN, HF_TOKEN_PATH or a login.

    Raises SourceError where HF_HUB_OFFLINE forbids all of it.
    """
    from huggingface_hub import constants, get_token  # the library knows the names that its users know

    if constants.HF_HUB_OFFLINE:
        raise SourceError("HF_HUB_OFFLINE is set, so no hub is asked; unset it, or give a model source file:///<directory>")
    return HubAccess((constants.ENDPOINT, *mirrors), token or get_token())


def download(
    source: HubSource, destination: Path, access: HubAccess, log: Log, *, commit: str | None = None, pace: Pace | None = None
) -> Downloaded:
    """Bring the files to a directory beside ``destination``, going on with what an earlier try left there.

    Args:
        commit: What the revision was resolved to before; None: it is resolved now.

    Raises:
        SourceError: no hub gives the files, they are not a model in safetensors, or the disk is full. What came is kept.
    """
    directory = partial_name(destination)
    begun = read_json(directory / STATE) or read_json(directory / MARKER)
    if begun is None or begun.get("source") != str(source):
        remove(directory)
    else:
        commit = begun["commit"]
    with HubClient(access, log, pace) as client:
        listing = client.listing(source.repository, commit or source.asked)
        _check_commit(source, commit, listing)
        log(f"{source} is commit {listing.commit}" + (", as before" if commit else ""))
        _refuse_useless(source, listing)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_json(directory / STATE, {"source": str(source), "commit": listing.commit})
            files = _Files(client, source, listing, directory, log).bring()
        except OSError as error:
            raise _not_written(error, directory) from error
    _tidy(directory, keep={*files, STATE})
    return Downloaded(directory, listing.commit, files)


def resume_in(destination: Path, source: HubSource, commit: str) -> None:
    """Make of a damaged model an unfinished one: its good files stay, the others are fetched again at the same commit."""
    directory = partial_name(destination)
    remove(directory)
    destination.replace(directory)
    write_json(directory / STATE, {"source": str(source), "commit": commit})


class _Files:
    """The files of one commit on their way to one directory."""

    def __init__(self, client: HubClient, source: HubSource, listing: Listing, directory: Path, log: Log) -> None:
        self._client, self._source, self._listing = client, source, listing
        self._directory, self._log = directory, log
        self._lock = threading.Lock()
        self._came = self._total = 0
        self._began = self._said = time.monotonic()

    def bring(self) -> dict[str, dict[str, Any]]:
        """All that are needed: size and sha256 by name."""
        if INDEX in self._listing.files:
            self._one(self._listing.files[INDEX])
        wanted = [self._listing.files[name] for name in self._wanted()]
        self._refuse_without_room(wanted)
        records: dict[str, dict[str, Any]] = {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            tasks = {pool.submit(self._one, file): file.name for file in wanted}
            try:
                for task in as_completed(tasks):
                    records[tasks[task]] = task.result()
            except BaseException:
                self._client.stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        return records

    def _wanted(self) -> list[str]:
        """Companions, and of the safetensors those that belong to the model: some repositories hold it twice."""
        names = [name for name in self._listing.files if _matches(name, COMPANIONS)]
        if INDEX not in self._listing.files:
            return [*names, WEIGHTS]
        try:
            weights = set(json.loads((self._directory / INDEX).read_text())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"{self._source}: {INDEX} is no index of weights ({error}); choose another revision") from error
        if missing := sorted(weights - self._listing.files.keys()):
            raise SourceError(f"{self._source} lacks {', '.join(missing)}, which its {INDEX} names; choose another revision")
        if odd := sorted(name for name in weights if not _matches(name, ("*.safetensors",))):
            raise SourceError(f"{self._source}: {INDEX} names {', '.join(odd)}; weights are safetensors of the top folder")
        return [*names, *sorted(weights)]

    def _refuse_without_room(self, wanted: Iterable[HubFile]) -> None:
        """Before the first large byte, as far as the hub tells the sizes."""
        needed = sum(max(0, (file.bytes or 0) - self._there(file)) for file in wanted)
        free = shutil.disk_usage(self._directory).free
        self._total = needed
        if needed > free:
            raise SourceError(
                f"{self._source} needs {needed:,} bytes at {self._directory.parent}, {free:,} are free; make room, or choose "
                "another place with paths.models"
            )

    def _there(self, file: HubFile) -> int:
        paths = (self._directory / file.name, self._part(file))
        return sum(path.stat().st_size for path in paths if path.exists())

    def _part(self, file: HubFile) -> Path:
        return self._directory / f"{file.name}.part"

    def _one(self, file: HubFile) -> dict[str, Any]:
        whole, part = self._directory / file.name, self._part(file)
        if whole.exists():
            record, wrong = _record(file, whole)
            if not wrong:
                return record
            self._log(f"{file.name}: {wrong}; it is fetched again")
            whole.unlink()
        wrong = ""
        for _ in range(2):
            told = self._client.fetch(self._source.repository, self._listing.commit, file, part, self._tell)
            if told.sha256 is None and told.blob is None:
                self._log(f"{file.name}: the hub gives no digest to compare it with")
            record, wrong = _record(told, part)
            if not wrong:
                fsync(part)
                part.replace(whole)
                return record
            self._log(f"{file.name}: {wrong}; it is fetched again")
            part.unlink()
        raise SourceError(f"{self._source}: {file.name} came twice with another content: {wrong}; a proxy or mirror changes it")

    def _tell(self, count: int) -> None:
        with self._lock:
            self._came += count
            now = time.monotonic()
            if now - self._said < SAY_EVERY_S:
                return
            self._said = now
        rate = self._came / (now - self._began)
        self._log(f"{self._came / MB:,.0f} of {self._total / MB:,.0f} MB, {rate / MB:.1f} MB/s")


def _record(file: HubFile, path: Path) -> tuple[dict[str, Any], str]:
    """Size and sha256, and what is wrong with them by what the hub says, or nothing."""
    size, digest = path.stat().st_size, sha256(path)
    wrong = ""
    if file.bytes is not None and size != file.bytes:
        wrong = f"{size:,} bytes, the hub has {file.bytes:,}"
    elif file.sha256 is not None and digest != file.sha256:
        wrong = f"sha256 {digest}, the hub has {file.sha256}"
    elif file.blob is not None and (blob := _git_blob(path, size)) != file.blob:
        wrong = f"git blob {blob}, the hub has {file.blob}"
    return {"bytes": size, "sha256": digest}, wrong


def _git_blob(path: Path, size: int) -> str:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(MB):
            digest.update(chunk)
    return digest.hexdigest()


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    plain = "/" not in name and not name.startswith(".")
    return plain and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _check_commit(source: HubSource, commit: str | None, listing: Listing) -> None:
    pinned = commit or (source.asked if re.fullmatch("[0-9a-f]{40}", source.asked) else None)
    if not re.fullmatch("[0-9a-f]{40}", listing.commit) or pinned not in (None, listing.commit):
        raise SourceError(f"{source}: asked for commit {pinned or 'of the revision'}, the hub answers {listing.commit!r}")


def _refuse_useless(source: HubSource, listing: Listing) -> None:
    """Before anything comes."""
    if missing := [name for name in ("config.json", "tokenizer_config.json") if name not in listing.files]:
        raise SourceError(f"{source} has no {' and no '.join(missing)}; a model in Hugging Face form is needed")
    if INDEX in listing.files or WEIGHTS in listing.files:
        return
    pickles = [name for name in listing.files if _matches(name, PICKLES)]
    ggufs = [name for name in listing.files if name.endswith(".gguf")]
    if pickles:
        raise SourceError(
            f"{source} has its weights as {', '.join(pickles[:4])} only: pickles, which run code when they are read. Choose a "
            "revision with safetensors, such as refs/pr/<number> of the hub's converter, or convert it and give file:///<directory>"
        )
    if ggufs:
        raise SourceError(f"{source} has GGUF files only; name the repository of the original model, in safetensors")
    raise SourceError(f"{source} has neither {WEIGHTS} nor {INDEX}; it is no model in Hugging Face form")


def _not_written(error: OSError, directory: Path) -> SourceError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return SourceError(f"{directory} cannot be written: {error}")
    free = shutil.disk_usage(directory.parent).free
    return SourceError(
        f"the disk of {directory} is full, {free:,} bytes are free; what came is kept there, and the next try goes on with it: "
        "make room and run again, or remove it"
    )


def _tidy(directory: Path, keep: set[str]) -> None:
    for path in directory.iterdir():
        if path.name not in keep:
            remove(path)


def drop_if_empty(destination: Path) -> None:
    """Remove an unfinished directory in which no file has begun."""
    directory = partial_name(destination)
    if directory.is_dir() and {path.name for path in directory.iterdir()} <= {STATE}:
        remove(directory)
