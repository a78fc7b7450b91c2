"""What can go wrong with a host's Docker engine, in this project's words."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from openclaw_core.cluster.hosts import HostError

T = TypeVar("T")


class EngineError(HostError):
    """The engine of a host refused something, or does not answer."""


class ContainerFailed(HostError):
    """A container ended with an exit status other than 0, or did not end in time (``status`` None)."""

    def __init__(self, host: str, name: str, status: int | None, why: str, lines: Sequence[str]) -> None:
        said = "its last lines:\n" + "\n".join(lines) if lines else "it said nothing"
        super().__init__(host, f"container {name} {why}; {said}")
        self.name = name
        self.status = status
        self.lines = tuple(lines)


@contextlib.contextmanager
def engine_errors(host: str, doing: str) -> Iterator[None]:
    """docker-py's exceptions, and those of what is below it, become EngineError."""
    # Here rather than above: `openclaw-rl --help` must not wait for them.
    import docker.errors
    import requests
    import urllib3

    try:
        yield
    except docker.errors.APIError as error:
        raise EngineError(host, f"{doing}: {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise EngineError(host, f"{doing}: the Docker engine does not answer: {error}") from error


def until(items: Iterable[T], end: float, late: Callable[[], Exception]) -> Iterator[T]:
    """The items as they come, read in a thread; at ``end``, on time.monotonic's clock, ``late()`` is raised.

    The thread goes on until what it reads from ends: whoever leaves early ends that.
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None, bool]] = queue.SimpleQueue()

    def read() -> None:
        try:
            for item in items:
                results.put((item, None, False))
            results.put((None, None, True))
        except BaseException as error:  # noqa: BLE001 - it is raised where the items are used
            results.put((None, error, True))

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            item, error, ended = results.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            raise late() from None
        if error is not None:
            raise error
        if ended:
            return
        yield item  # type: ignore[misc]
