"""Ray over the hosts of a run: a head and workers in containers, started, taken up again, waited for and ended."""

from __future__ import annotations

import contextlib
import io
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import httpx
import structlog

from openclaw_core.cluster.docker.containers import Engine, Found
from openclaw_core.cluster.docker.errors import engine_errors
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, Hosts, on_each
from openclaw_core.cluster.kept_logs import keep_log
from openclaw_core.cluster.pinning import HOST
from openclaw_core.cluster.ray_head import auth_header, dashboard_url
from openclaw_core.cluster.specs import ContainerSpec
from openclaw_core.config.schema import RunConfig
from openclaw_core.rundir import RunDir

log = structlog.get_logger(__name__)

POLL_S = 1.0
SAY_EVERY_S = 15.0
TAIL_LINES = 30
KEPT_LINES = 100_000
"""Of what a container has written."""
RAY_ROLES = ("head", "worker")
JOB_LOG = "/tmp/ray/session_latest/logs/job-driver-{}.log"
"""Of a submission id, in the head's container."""


@contextlib.contextmanager
def engines_of(hosts: Hosts) -> Iterator[dict[str, Engine]]:
    """The Docker engine of every host, by its name; each is connected to when it is asked first."""
    engines = {host.name: Engine(host) for host in hosts}
    with contextlib.ExitStack() as stack:
        for engine in engines.values():
            stack.push(engine)
        yield engines


class RayHosts:
    """Ray of one run. Raises ClusterError (every method)."""

    def __init__(self, config: RunConfig, run: RunDir, hosts: Hosts, engines: Mapping[str, Engine]) -> None:
        self._config, self._run, self._hosts, self._engines = config, run, hosts, engines
        self._head = hosts.head.name

    def launch(self, specs: Iterable[ContainerSpec]) -> bool:
        """Have every host in Ray, as its spec says. True where all of it was there already.

        A head that is alive is kept, and a worker is made anew where it is not one of its nodes: dead, or left by another
        head, whose token it holds. Without a head, whatever is left of the run's Ray is removed first.
        """
        self._refuse_others()
        of_host = {spec.host: spec for spec in specs}
        workers = [host for host in self._hosts if host.name != self._head]

        def start(host: Host) -> None:
            engine = self._engines[host.name]
            engine.remove([each.name for each in self._ray_containers(host)])
            engine.start(of_host[host.name])

        found = self.alive()
        if not found:
            self.remove()
            start(self._hosts.head)
        self._wait([self._head])
        missing = [host for host in workers if not self._is_node(host)]
        on_each(missing, start)
        self._wait([host.name for host in self._hosts])
        return found and not missing

    def alive(self) -> bool:
        """Whether the head's container runs."""
        return any(each.state == "running" for each in self._ray_containers(self._hosts.head))

    def remove(self) -> list[str]:
        """Remove the run's Ray containers on every host, dead or alive; as ``host: container``."""

        def remove(host: Host) -> list[str]:
            names = [each.name for each in self._ray_containers(host)]
            self._engines[host.name].remove(names)
            return [f"{host.name}: {name}" for name in names]

        # Workers first: they would report a head that is gone as a failure. A host that is away keeps no other's.
        workers = [host for host in self._hosts if host.name != self._head]
        removed: list[str] = []
        errors: list[str] = []
        for host in (*workers, self._hosts.head):
            try:
                removed += remove(host)
            except ClusterError as error:
                errors.append(str(error))
        if errors:
            raise ClusterError("\n".join([*errors, f"removed elsewhere: {', '.join(removed) or 'nothing'}"]))
        return removed

    def keep_logs(self) -> None:
        """Write what Ray's container on each host has written into the run's logs; of the hosts that can be asked."""
        for host in self._hosts:
            try:
                for each in self._ray_containers(host):
                    text = self._engines[host.name].logs(each.name, tail=KEPT_LINES)
                    keep_log(self._run.logs / f"{each.name}.log", each.id, text)
            except ClusterError as error:
                log.warning("logs_not_kept", host=host.name, reason=str(error))

    def job_log(self, submission_id: str) -> bytes | None:
        """What a job wrote, out of the files of the head's container, which may be dead; None where it has no such job."""
        import docker.errors

        engine = self._engines[self._head]
        for each in self._ray_containers(self._hosts.head):
            with engine_errors(self._head, f"the log of job {submission_id} cannot be read"):
                try:
                    chunks, _ = engine.client.containers.get(each.name).get_archive(JOB_LOG.format(submission_id))
                except docker.errors.NotFound:
                    continue
                return _only_file(b"".join(chunks))
        return None

    def _refuse_others(self) -> None:
        def look(host: Host) -> list[Found]:
            return self._engines[host.name].foreign(self._run.run_id)

        others = dict(zip((host.name for host in self._hosts), on_each(self._hosts.all, look), strict=True))
        told = [f"{name}: run {each.run} ({each.name})" for name, found in others.items() for each in found if each.alive]
        if told:
            raise ClusterError(
                "hosts that belong to another run: " + "; ".join(told) + "; end it with `openclaw-rl stop <run>`, or use others"
            )

    def _is_node(self, host: Host) -> bool:
        """Whether its container runs and has joined the head that there is."""
        runs = any(each.state == "running" for each in self._ray_containers(host))
        return runs and host.name in self._joined()[0]

    def _ray_containers(self, host: Host) -> list[Found]:
        return [each for each in self._engines[host.name].of_run(self._run.run_id) if each.role in RAY_ROLES]

    def _wait(self, names: Sequence[str]) -> None:
        """Until these hosts are nodes of Ray. A container that has ended is told at once, with its last lines."""
        limit = self._config.cluster.ray_deadline_s
        end, said = time.monotonic() + limit, time.monotonic()
        while True:
            joined, answer = self._joined()
            late = [name for name in names if name not in joined]
            if not late:
                return
            self._refuse_ended(late)
            now = time.monotonic()
            if now > end:
                where = dashboard_url(self._config)
                raise ClusterError(f"not in Ray within cluster.ray_deadline_s={limit:g}: {', '.join(late)}; {where}: {answer}")
            if now - said > SAY_EVERY_S:
                said = now
                log.info("ray_starting", waiting_for=late, answer=answer)
            time.sleep(POLL_S)

    def _refuse_ended(self, names: Sequence[str]) -> None:
        for name in names:
            for each in self._ray_containers(self._hosts.named(name)):
                if each.state in ("exited", "dead"):
                    tail = self._engines[name].logs(each.name, tail=TAIL_LINES)
                    raise ClusterError(f"{each.name} on {name} has ended with status {each.exit_code}; its last lines:\n{tail}")

    def _joined(self) -> tuple[set[str], str]:
        """Hosts whose Ray node is alive, and what the dashboard said."""
        url = f"{dashboard_url(self._config)}/nodes?view=summary"
        try:
            answer = httpx.get(url, headers=auth_header(self._run), timeout=10, trust_env=False)
        except httpx.TransportError as error:
            return set(), f"no answer ({error})"
        if answer.status_code in (401, 403):
            raise ClusterError(f"{url} belongs to a Ray of another run: it refuses our token; end that one first")
        if not answer.is_success:
            return set(), f"HTTP {answer.status_code}"
        nodes: list[dict[str, Any]] = answer.json()["data"]["summary"]
        alive = [node["raylet"] for node in nodes if node["raylet"].get("state") == "ALIVE"]
        resources = {name for raylet in alive for name in raylet.get("resourcesTotal", {})}
        return {name.removeprefix(HOST) for name in resources if name.startswith(HOST)}, f"{len(alive)} nodes alive"


def _only_file(archive: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        content = files.extractfile(files.getmembers()[0])
        assert content is not None, "the log of a job is a file"
        return content.read()
