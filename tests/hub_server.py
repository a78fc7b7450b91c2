"""A Hugging Face hub of a few files on loopback: as much of its protocol as a download of a data set uses."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub:
    """Repositories as commit → file name → content; branches point at commits. ``asked``: paths, in order."""

    def __init__(self, repository: str, commits: dict[str, dict[str, bytes]], branches: dict[str, str]) -> None:
        self.repository = repository
        self.commits = commits
        self.branches = branches
        self.asked: list[str] = []

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """The hub's address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path."""
        self.asked.append(path)
        if match := re.fullmatch(rf"/api/datasets/{self.repository}/(revision|tree)/([^/?]+)(?:\?.*)?", path):
            sha = self._commit(match[2])
            files = self.commits.get(sha)
            if files is not None:
                tree = [{"type": "file", "path": name, "size": len(body), "oid": sha} for name, body in files.items()]
                found = tree if match[1] == "tree" else {"id": self.repository, "sha": sha}
                return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()
        elif match := re.fullmatch(rf"/datasets/{self.repository}/resolve/([^/]+)/(.+)", path):
            sha = self._commit(match[1])
            content = self.commits.get(sha, {}).get(match[2])
            if content is not None:
                return 200, {"X-Repo-Commit": sha, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}, content
        return 404, {"X-Error-Code": "RevisionNotFound" if self.repository in path else "RepoNotFound"}, b""

    def _commit(self, revision: str) -> str:
        return self.branches.get(revision, revision)

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(with_body=True)

            def do_HEAD(self) -> None:
                self._send(with_body=False)

            def _send(self, with_body: bool) -> None:
                status, headers, body = hub.answer(self.path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Not to the terminal."""

        return Handler
