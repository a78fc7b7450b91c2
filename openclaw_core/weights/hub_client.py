"""The HTTP of a Hugging Face hub: what a revision holds, and files in pieces that can be resumed.

The hub's own library gives up what has come of a file when a process ends, and waits as long as a server tells it to; a
model of 60 GB over a poor line needs both otherwise. As much of the protocol as is used here:

    GET /api/models/<repository>/revision/<revision>?blobs=true    commit, and each file's size and digest
    GET /<repository>/resolve/<commit>/<file>                      its bytes, by Range, mostly after a redirect
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from openclaw_core.weights.child import Log
from openclaw_core.weights.errors import SourceError

T = TypeVar("T")

PROGRESS = 1_000_000
"""Bytes after which a broken download counts as going on: the count of its tries starts anew."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524})


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Which hubs are asked, in order, and as whom."""

    endpoints: tuple[str, ...]
    """Addresses such as https://huggingface.co; the later ones are mirrors of the first."""
    token: str | None = field(default=None, repr=False)
    """For the first endpoint alone: whoever runs a mirror has no business with it."""

    def __post_init__(self) -> None:
        for endpoint in self.endpoints:
            if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", endpoint):
                raise SourceError(f"hub address {endpoint!r} is not understood; it is like https://huggingface.co")
        object.__setattr__(self, "endpoints", tuple(dict.fromkeys(endpoint.rstrip("/") for endpoint in self.endpoints)))


@dataclass(frozen=True, slots=True)
class Pace:
    """How a failed request is asked again. Seconds."""

    tries: int = 6
    """At one endpoint, without anything coming."""
    first_s: float = 1
    """Before the second try; each wait is twice the one before."""
    longest_s: float = 60
    """Also where the server asks for more: the next endpoint may be free."""
    connect_s: float = 15
    silence_s: float = 60
    """Without a byte, in an answer that has begun."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a commit. None: the hub does not say."""

    name: str
    bytes: int | None
    sha256: str | None
    """Of a file in large-file storage."""
    blob: str | None
    """Git's own digest, which the other files have."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a revision holds."""

    commit: str
    files: dict[str, HubFile]


class Refused(SourceError):
    """An endpoint says no, and would again."""


class _Passing(Exception):
    """An endpoint does not answer as it should, but may soon. ``after_s``: when, if it says so."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Stopped(SourceError):
    """Another file's download has failed, and with it the whole."""


class HubClient:
    """One hub with its mirrors. Thread-safe. A context manager."""

    def __init__(self, access: HubAccess, log: Log, pace: Pace | None = None) -> None:
        self._access, self._log, self._pace = access, log, pace or Pace()
        self._order = list(access.endpoints)
        self.stop = Event()
        """Ends every request that is going on."""
        timeout = httpx.Timeout(self._pace.silence_s, connect=self._pace.connect_s)
        # Without a token to whoever a redirect leads to: httpx drops the header where the host is another one.
        self._http = httpx.Client(timeout=timeout, follow_redirects=True, headers={"Accept-Encoding": "identity"})

    def __enter__(self) -> HubClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def listing(self, repository: str, revision: str) -> Listing:
        """The commit that ``revision`` is now, and its files. Raises SourceError."""
        path = f"/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"

        def ask(endpoint: str) -> Listing:
            response = self._http.get(endpoint + path, headers=self._authorization(endpoint))
            _check(response, endpoint, repository, revision)
            return _listing(response, endpoint)

        return self._ask(ask, f"hf://{repository}@{revision}")

    def fetch(self, repository: str, commit: str, file: HubFile, part: Path, came: Callable[[int], None]) -> HubFile:
        """Append to ``part`` what it lacks of the file. ``came`` is told of bytes as they come.

        Returns: the file with the digest that came with it, where the listing had none.

        Raises:
            SourceError: no endpoint gave it; what came is kept.
            OSError: it cannot be written.
        """
        path = f"/{repository}/resolve/{commit}/{quote(file.name)}"
        return self._ask(
            lambda endpoint: self._stream(endpoint, path, repository, commit, file, part, came),
            f"hf://{repository}@{commit}: {file.name}",
            lambda: _size(part),
        )

    def _stream(
        self, endpoint: str, path: str, repository: str, commit: str, file: HubFile, part: Path, came: Callable[[int], None]
    ) -> HubFile:
        have = _size(part)
        if file.bytes is not None and have == file.bytes and part.exists():
            return file
        headers = self._authorization(endpoint) | ({"Range": f"bytes={have}-"} if have else {})
        with self._http.stream("GET", endpoint + path, headers=headers) as response:
            if response.status_code == 416:
                part.unlink()
                raise _Passing(f"{file.name} has no byte {have}: it is begun again")
            _check(response, endpoint, repository, commit)
            if have and not _goes_on(response, have):
                have = 0
            with part.open("ab" if have else "wb") as stream:
                for chunk in response.iter_bytes():
                    if self.stop.is_set():
                        raise Stopped(f"{file.name}: stopped")
                    stream.write(chunk)
                    came(len(chunk))
        if file.bytes is not None and _size(part) < file.bytes:
            raise _Passing(f"{file.name} ended after {_size(part):,} of {file.bytes:,} bytes")
        return _with_digest(file, response)

    def _ask(self, do: Callable[[str], T], what: str, size: Callable[[], int] = lambda: 0) -> T:
        """Try each endpoint in turn, the one that answers ahead of those that do not."""
        failed: list[str] = []
        for endpoint in tuple(self._order):
            try:
                return self._patiently(do, endpoint, size)
            except Refused as error:
                failed.append(str(error))
            except _Passing as error:
                failed.append(str(error))
                if endpoint in self._order:
                    self._order = [other for other in self._order if other != endpoint] + [endpoint]
            self._log(f"{what}: {failed[-1]}")
        raise SourceError(f"{what} cannot be downloaded: " + "; ".join(failed))

    def _patiently(self, do: Callable[[str], T], endpoint: str, size: Callable[[], int]) -> T:
        tries, wait_s = 0, self._pace.first_s
        while True:
            before = size()
            try:
                return do(endpoint)
            except httpx.TransportError as error:
                trouble = _Passing(f"{endpoint}: {type(error).__name__} {error}".rstrip())
            except _Passing as error:
                trouble = error
            if size() - before >= PROGRESS:
                tries, wait_s = 0, self._pace.first_s
            tries += 1
            if tries >= self._pace.tries:
                raise _Passing(f"{trouble}, {tries} times; check network and proxies, or name a mirror") from trouble
            pause_s = min(trouble.after_s or wait_s, self._pace.longest_s)
            self._log(f"{trouble}; again in {pause_s:g} s")
            if self.stop.wait(pause_s):
                raise Stopped(f"{endpoint}: stopped")
            wait_s *= 2

    def _authorization(self, endpoint: str) -> dict[str, str]:
        token = self._access.token if endpoint == self._access.endpoints[0] else None
        return {"Authorization": f"Bearer {token}"} if token else {}


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _goes_on(response: httpx.Response, have: int) -> bool:
    """Whether the body begins where the file ends. Another one is the whole file: a server may ignore a Range."""
    if response.status_code != 206:
        return False
    begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if begins is None or int(begins[1]) != have:
        raise _Passing(f"asked from byte {have}, the answer is {response.headers.get('Content-Range')!r}")
    return True


def _with_digest(file: HubFile, response: httpx.Response) -> HubFile:
    """By the hub's own answer: what it leads to may have a digest of another kind."""
    if file.sha256 is not None or file.blob is not None:
        return file
    headers = (response.history or [response])[0].headers
    tag = (headers.get("X-Linked-Etag") or headers.get("ETag") or "").removeprefix("W/").strip('"')
    return replace(
        file, sha256=tag if re.fullmatch("[0-9a-f]{64}", tag) else None, blob=tag if re.fullmatch("[0-9a-f]{40}", tag) else None
    )


def _listing(response: httpx.Response, endpoint: str) -> Listing:
    try:
        found = response.json()
        files = {entry["rfilename"]: _file(entry) for entry in found["siblings"]}
        return Listing(found["sha"], files)
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(
            f"{endpoint} does not answer as a hub does ({type(error).__name__}: {error}); check HF_ENDPOINT"
        ) from error


def _file(entry: dict[str, Any]) -> HubFile:
    large = entry.get("lfs") or {}
    size = large.get("size", entry.get("size"))
    # The digest of a large file's git blob is that of the pointer to it.
    return HubFile(entry["rfilename"], size, large.get("sha256"), None if large else entry.get("blobId"))


def _check(response: httpx.Response, endpoint: str, repository: str, revision: str) -> None:
    """Raises what a status means. No address of the answer is named: a redirect's is signed."""
    status = response.status_code
    if status < 400:
        return
    if status in _PASSING:
        raise _Passing(f"{endpoint} answers {status} {_reason(response)}".rstrip(), _after(response))
    raise Refused(f"{endpoint} answers {status}: {_advice(status, response, endpoint, repository, revision)}")


def _advice(status: int, response: httpx.Response, endpoint: str, repository: str, revision: str) -> str:
    code = response.headers.get("X-Error-Code", "")
    token = "a token in HF_TOKEN, or in the file that HF_TOKEN_PATH names"
    if code == "GatedRepo" or status == 403:
        return (
            f"{repository} is gated, or this token may not read it; accept its conditions at {endpoint}/{repository} and give "
            f"{token}, with the right to read it"
        )
    if status == 401:
        return f"{repository} does not exist, or is private or gated; check the name, and give {token}, if it is not public"
    if code == "RevisionNotFound":
        return f"{repository} has no revision {revision!r}; check the name of the branch, tag or commit"
    if code == "EntryNotFound":
        return f"{repository}@{revision} has no such file"
    if status == 404:
        return f"there is no repository {repository}; check the name. A private one needs {token}"
    return f"{_reason(response)}; check HF_ENDPOINT, proxies and network"


def _reason(response: httpx.Response) -> str:
    return response.headers.get("X-Error-Message") or response.reason_phrase


def _after(response: httpx.Response) -> float | None:
    """What Retry-After says, in seconds; a date is not read."""
    said = response.headers.get("Retry-After", "")
    return float(said) if re.fullmatch(r"\d+", said) else None
