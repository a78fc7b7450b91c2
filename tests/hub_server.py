"""A Hugging Face hub of a few files: as much of its protocol as downloads of data sets and models use, and its troubles.

Large files (``*.safetensors``, ``*.bin``) are in large-file storage: asked for, the hub leads to another server, by an address
that is signed. The other files come from the hub itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

SIGNATURE = "X-Amz-Signature=secret"


@dataclass
class Answer:
    """What is sent back."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    file: str | None = None
    """Whose content the body is."""


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    server: str
    """hub or storage."""
    path: str
    headers: Mapping[str, str]


class Hub:
    """Repositories as commit → file name → content; branches point at commits. ``asked``: paths, in order.

    The public attributes are its troubles, each used up or kept as it says; a test sets them.
    """

    def __init__(self, repository: str, commits: dict[str, dict[str, bytes]], branches: dict[str, str]) -> None:
        self.repository = repository
        self.commits = commits
        self.branches = branches
        self.asked: list[str] = []
        self.requests: list[Asked] = []
        self.sent: Counter[str] = Counter()
        """File → bytes of it that were sent."""
        self.breaks: dict[str, list[int]] = {}
        """File → after how many bytes of each of the next answers the connection ends; below 0: it is reset after so many."""
        self.failures: list[Answer] = []
        """Given instead of the next answers."""
        self.needs_token: str | None = None
        self.refusal = Answer(401, {"X-Error-Code": "GatedRepo"})
        """What is answered without the token."""
        self.tampered: dict[str, list[bytes]] = {}
        """File → what is sent for it the next times."""
        self.ranges = True
        """Whether a Range is heeded."""
        self.tells = True
        """Whether sizes and digests are told."""
        self.chunk_s = 0.0
        """Seconds between pieces of 64 kB."""
        self._storage = ""

    @contextlib.contextmanager
    def serving(self, host: str = "127.0.0.1") -> Iterator[str]:
        """The hub's address."""
        servers = [ThreadingHTTPServer((host, 0), self._handler(name)) for name in ("hub", "storage")]
        threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
        for thread in threads:
            thread.start()
        url, self._storage = (f"http://{host}:{server.server_port}" for server in servers)
        try:
            yield url
        finally:
            for server, thread in zip(servers, threads, strict=True):
                server.shutdown()
                server.server_close()
                thread.join()

    def answer(self, asked: Asked) -> Answer:
        """Status, headers and body for a request."""
        self.asked.append(asked.path)
        self.requests.append(asked)
        if self.failures:
            return self.failures.pop(0)
        if asked.server == "storage":
            return self._stored(asked)
        if self.needs_token is not None and asked.headers.get("Authorization") != f"Bearer {self.needs_token}":
            return self.refusal
        if match := re.fullmatch(
            rf"/api/(?:models|datasets)/{self.repository}(?:/(revision|tree)/([^/?]+))?(?:\?.*)?", asked.path
        ):
            sha = self._commit(unquote(match[2] or "main"))
            if sha in self.commits:
                found = self._tree(sha) if match[1] == "tree" else {"id": self.repository, "sha": sha, **self._siblings(sha)}
                return Answer(200, {"Content-Type": "application/json"}, json.dumps(found).encode())
        elif match := re.fullmatch(rf"/(?:datasets/)?{self.repository}/resolve/([^/]+)/(.+)", asked.path):
            return self._resolved(self._commit(unquote(match[1])), unquote(match[2]), asked)
        known = re.search(rf"/{self.repository}(/|$)", asked.path)
        return Answer(404, {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})

    def _resolved(self, sha: str, name: str, asked: Asked) -> Answer:
        content = self.commits.get(sha, {}).get(name)
        if content is None:
            return Answer(404, {"X-Error-Code": "EntryNotFound" if sha in self.commits else "RevisionNotFound"})
        headers = {"X-Repo-Commit": sha, "ETag": f'"{_etag(name, content)}"'}
        if not _large(name):
            return self._content(name, content, headers, asked)
        linked = {"X-Linked-Etag": headers.pop("ETag"), "X-Linked-Size": str(len(content))}
        return Answer(302, {**headers, **linked, "Location": f"{self._storage}/{sha}/{name}?{SIGNATURE}"})

    def _stored(self, asked: Asked) -> Answer:
        sha, name = asked.path.removesuffix(f"?{SIGNATURE}").removeprefix("/").split("/", 1)
        return self._content(name, self.commits[sha][name], {}, asked)

    def _content(self, name: str, content: bytes, headers: dict[str, str], asked: Asked) -> Answer:
        if self.tampered.get(name):
            content = self.tampered[name].pop(0)
        begin = re.fullmatch(r"bytes=(\d+)-", asked.headers.get("Range", ""))
        if begin is None or not self.ranges:
            return Answer(200, headers, content, name)
        start = int(begin[1])
        if start >= len(content):
            return Answer(416, {**headers, "Content-Range": f"bytes */{len(content)}"})
        return Answer(
            206, {**headers, "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}, content[start:], name
        )

    def _tree(self, sha: str) -> list[dict[str, object]]:
        return [{"type": "file", "path": name, "size": len(body), "oid": sha} for name, body in self.commits[sha].items()]

    def _siblings(self, sha: str) -> dict[str, object]:
        return {"siblings": [self._sibling(name, body) for name, body in self.commits[sha].items()]}

    def _sibling(self, name: str, body: bytes) -> dict[str, object]:
        if not self.tells:
            return {"rfilename": name}
        large = {"lfs": {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}}
        return {"rfilename": name, "size": len(body), "blobId": _blob(body), **(large if _large(name) else {})}

    def _commit(self, revision: str) -> str:
        return self.branches.get(revision, revision)

    def _handler(hub, server: str) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(with_body=True)

            def do_HEAD(self) -> None:
                self._send(with_body=False)

            def _send(self, with_body: bool) -> None:
                answer = hub.answer(Asked(server, self.path, dict(self.headers.items())))
                self.send_response(answer.status)
                for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if with_body:
                    self._send_body(answer)

            def _send_body(self, answer: Answer) -> None:
                breaks = hub.breaks.get(answer.file or "")
                cut = breaks.pop(0) if breaks else None
                body = answer.body if cut is None else answer.body[: abs(cut)]
                with contextlib.suppress(ConnectionError):  # the client has gone
                    for start in range(0, len(body), 1 << 16):
                        piece = body[start : start + (1 << 16)]
                        self.wfile.write(piece)
                        if answer.file is not None:
                            hub.sent[answer.file] += len(piece)
                        time.sleep(hub.chunk_s)
                if cut is not None:
                    self.close_connection = True
                    if cut < 0:
                        time.sleep(0.2)  # a reset overtakes what has not been read yet
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        self.connection.close()

            def log_message(self, format: str, *args: object) -> None:
                """Not to the terminal."""

        return Handler


def _large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


def _etag(name: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if _large(name) else _blob(content)


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
