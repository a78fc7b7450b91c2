"""Containers on a host, through its Docker engine's own interface over SSH. No Docker program is needed on either side."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import structlog

from openclaw_core.cluster.copies.pipes import script_on
from openclaw_core.cluster.docker.errors import ContainerFailed, EngineError, engine_errors, until
from openclaw_core.cluster.docker.terms import ALIVE, SPEC_LABEL, Found, create_arguments, found, spec_digest
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, HostError
from openclaw_core.cluster.specs import RUN_LABEL, ContainerSpec

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

__all__ = ["ContainerFailed", "Engine", "EngineError", "Found", "spec_digest"]

log = structlog.get_logger(__name__)

LAST_LINES = 30
RECONNECTIONS = 8
"""In a row, to the log of a container whose connection was lost."""
LONGEST_PAUSE_S = 15


class Engine:
    """A host's Docker engine. A context manager: the way to it is closed with the block."""

    def __init__(self, host: Host, timeout_s: float = 120) -> None:
        self.host = host
        self._timeout_s = timeout_s
        self._stack = contextlib.ExitStack()
        self._client: DockerClient | None = None
        self._left = False

    def __enter__(self) -> Engine:
        self._open()
        return self

    def __exit__(self, *_error: object) -> None:
        self._left = True
        self._close()

    @property
    def client(self) -> DockerClient:
        """docker-py's client; its exceptions are the caller's to mind. Raises HostError where the host is out of reach."""
        if self._left:
            raise EngineError(self.host.name, "the way to its Docker engine has been closed")
        if self._client is None:  # a connection that was lost
            self._open()
        assert self._client is not None
        return self._client

    def start(self, spec: ContainerSpec) -> bool:
        """Make sure that the container runs. True where one with the same spec and image did already: it is left alone.

        A dead one of that name is removed first.

        Raises:
            EngineError: another container of that name runs; the host lacks the image, a device, or a mount that is not
                optional; or the engine refused.
        """
        return self._make(spec)

    def run_once(self, spec: ContainerSpec, tell: Callable[[str], None], deadline_s: float) -> None:
        """Run a container to its end and remove it, whatever happens; ``tell`` gets each line of its output, as it comes.

        One with the same spec that runs already, left behind by a process that was killed, is followed from its first line.
        A lost connection is made again and goes on with the next line.

        Raises:
            ContainerFailed: its exit status is not 0, or it has not ended within ``deadline_s``.
            EngineError: as ``start``, or the engine stays out of reach.
        """
        end = time.monotonic() + deadline_s
        self._make(spec)
        last: deque[str] = deque(maxlen=LAST_LINES)

        def late() -> ContainerFailed:
            return ContainerFailed(self.host.name, spec.name, None, f"did not end within {deadline_s:g} s", last)

        try:
            for line in until(self._lines(spec.name), end, late):
                last.append(line)
                tell(line)
            self._check_end(spec.name, last)
        except BaseException:
            self._remove_after_failure(spec.name)
            raise
        self.remove([spec.name], grace_s=0)

    def of_run(self, run_id: str) -> list[Found]:
        """The run's containers on this host, dead ones too, by name. Raises EngineError."""
        return self._list(f"{RUN_LABEL}={run_id}")

    def foreign(self, run_id: str) -> list[Found]:
        """Containers of other runs on this host, dead ones too, by name. Raises EngineError."""
        return [container for container in self._list(RUN_LABEL) if container.run != run_id]

    def remove(self, names: Sequence[str], grace_s: int = 10) -> None:
        """Stop containers, with SIGKILL after ``grace_s``, and remove them. One that is not there is fine. Raises EngineError.

        Their anonymous volumes go with them.
        """
        import docker.errors

        for name in names:
            with engine_errors(self.host.name, f"container {name} cannot be removed"):
                try:
                    container = self.client.containers.get(name)
                    if grace_s and container.status in ALIVE:
                        container.stop(timeout=grace_s)
                    container.remove(force=True, v=True)
                except docker.errors.NotFound:
                    continue
                except docker.errors.APIError as error:
                    if error.status_code != 409:  # another has begun to remove it
                        raise
                self._await_gone(name)

    def logs(self, name: str, tail: int = 100) -> str:
        """The last lines of a container's output, standard error among it. Raises EngineError."""
        with engine_errors(self.host.name, f"the log of container {name} cannot be read"):
            return self.client.containers.get(name).logs(tail=tail).decode(errors="replace")

    def image_id(self, reference: str) -> tuple[str, str] | None:
        """Id and architecture (amd64, arm64) of an image on this host; None where it is not there. Raises EngineError."""
        import docker.errors

        with engine_errors(self.host.name, f"image {reference} cannot be looked up"):
            try:
                image = self.client.images.get(reference)
            except docker.errors.ImageNotFound:
                return None
            return str(image.id), str(image.attrs["Architecture"])

    def _open(self) -> None:
        import docker

        path = self._stack.enter_context(self.host.socket(self.host.config.docker_socket))
        try:
            with engine_errors(self.host.name, str(self.host.config.docker_socket)):
                # Asks the engine for its version, so that an old one is spoken to in its own.
                self._client = docker.DockerClient(base_url=f"unix://{path}", timeout=int(self._timeout_s))
        except BaseException:
            self._stack.close()
            raise

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        self._stack.close()

    def _make(self, spec: ContainerSpec) -> bool:
        image = self.image_id(spec.image)
        if image is None:
            raise EngineError(
                self.host.name, f"there is no image {spec.image}; build it, or bring it there, with distribute-image"
            )
        existing = self._get(spec.name)
        if existing is not None and existing.status in ALIVE:
            self._check_same(existing, spec, image[0])
            return True
        arguments = create_arguments(spec, self._missing(spec))
        if existing is not None:
            self.remove([spec.name], grace_s=0)
        with engine_errors(self.host.name, f"container {spec.name} cannot be made"):
            container = self.client.containers.create(**arguments)
        try:
            with engine_errors(self.host.name, f"container {spec.name} cannot be started"):
                container.start()
        except BaseException:
            self._remove_after_failure(spec.name)
            raise
        log.info("container_started", host=self.host.name, container=spec.name, image=spec.image)
        return False

    def _get(self, name: str) -> Container | None:
        import docker.errors

        with engine_errors(self.host.name, f"container {name} cannot be looked up"):
            try:
                return self.client.containers.get(name)
            except docker.errors.NotFound:
                return None

    def _check_same(self, container: Container, spec: ContainerSpec, image: str) -> None:
        differs = [
            what
            for what, same in {
                "spec": container.labels.get(SPEC_LABEL) == spec_digest(spec),
                "image": container.attrs["Image"] == image,
            }.items()
            if not same
        ]
        if differs:
            raise EngineError(
                self.host.name,
                f"container {spec.name} runs already with another {' and '.join(differs)}; end the run that it belongs to "
                f"({container.labels.get(RUN_LABEL, 'none of ours')}) with openclaw-rl stop, or give this one another name",
            )

    def _missing(self, spec: ContainerSpec) -> frozenset[str]:
        """Optional mounts that the host does not have. Raises EngineError for what it lacks and must have."""
        optional = {mount.source for mount in spec.mounts if mount.optional}
        needed = {mount.source for mount in spec.mounts if not mount.optional} | set(spec.devices)
        paths = sorted(optional | needed)
        script = 'for path; do if [ -e "$path" ]; then echo 1; else echo 0; fi; done'
        marks = script_on(self.host, "mounts and devices cannot be looked up", script, *paths).split() if paths else []
        absent = {path for path, mark in zip(paths, marks, strict=True) if mark == "0"}
        if lacking := sorted(absent & needed):
            kinds = [f"device {path}" if path in spec.devices else f"mount {path}" for path in lacking]
            raise EngineError(
                self.host.name,
                f"container {spec.name} needs {', '.join(kinds)}, which the host does not have; install what is missing, "
                "or correct cluster.hosts (npus) or cluster.mounts",
            )
        return frozenset(absent)

    def _lines(self, name: str) -> Iterator[str]:
        """A container's output from its first line until it has ended, over as many connections as it takes."""
        seen, lost, pending = 0, 0, b""
        while True:
            try:
                with engine_errors(self.host.name, f"the log of container {name} cannot be followed"):
                    container = self.client.containers.get(name)
                    # Read again from the start, and what was seen is passed over: times would be less exact.
                    passing = seen
                    for chunk in container.logs(stream=True, follow=True):
                        new, passing = chunk[passing:], max(0, passing - len(chunk))
                        seen, lost = seen + len(new), 0 if new else lost
                        *whole, pending = (pending + new).split(b"\n")
                        yield from (line.decode(errors="replace") for line in whole)
                    container.reload()
                    if container.status not in ALIVE:
                        # What it wrote in its last moment may be in the log only after the stream of it has ended.
                        pending += container.logs()[seen:]
                        break
            except HostError as error:
                lost += 1
                if lost > RECONNECTIONS or not _is_lost(error):
                    raise
                self._forget_connection(lost, error)
        yield from pending.decode(errors="replace").splitlines()

    def _forget_connection(self, lost: int, error: HostError) -> None:
        """The next use makes a new one."""
        pause = min(2.0**lost, LONGEST_PAUSE_S)
        log.warning("engine_lost", host=self.host.name, why=str(error), pause_s=pause)
        self._close()
        time.sleep(pause)

    def _check_end(self, name: str, last: Sequence[str]) -> None:
        with engine_errors(self.host.name, f"container {name} cannot be looked up"):
            state = self.client.containers.get(name).attrs["State"]
        code = int(state["ExitCode"])
        if code:
            why = "ran out of memory" if state.get("OOMKilled") else f"ended with status {code}"
            raise ContainerFailed(self.host.name, name, code, why, last)

    def _remove_after_failure(self, name: str) -> None:
        """The failure is what is raised, so this one is only written down."""
        try:
            self.remove([name], grace_s=0)
        except ClusterError as error:
            log.warning("container_left", host=self.host.name, container=name, why=str(error))

    def _await_gone(self, name: str, deadline_s: float = 30) -> None:
        end = time.monotonic() + deadline_s
        while self._get(name) is not None:
            if time.monotonic() > end:
                raise EngineError(self.host.name, f"container {name} is still there {deadline_s:g} s after its removal")
            time.sleep(0.1)

    def _list(self, label: str) -> list[Found]:
        with engine_errors(self.host.name, "its containers cannot be listed"):
            containers = self.client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
        return sorted(map(found, containers), key=lambda container: container.name)


def _is_lost(error: HostError) -> bool:
    """Whether the engine could not be reached, as against refused."""
    import docker.errors

    return not isinstance(error.__cause__, docker.errors.APIError)
