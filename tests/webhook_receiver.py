"""A real HTTP server that takes webhooks."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

PATH = "/hook/s3cret-t0ken"


class Receiver:
    """Answers requests in order with what it is told to, then with 200 and ``ok``; keeps what it was sent."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.answers: list[tuple[int, str]] = []
        self.url = ""

    @contextlib.contextmanager
    def serving(self) -> Iterator[Receiver]:
        """Serve in a thread, on a port of its own."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == PATH
                receiver.received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                status, body = receiver.answers.pop(0) if receiver.answers else (200, "ok")
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing on stderr."""

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            self.url = f"http://127.0.0.1:{server.server_port}{PATH}"
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            yield self
            server.shutdown()
            thread.join()
