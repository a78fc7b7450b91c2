"""A run on hosts of its own: Ray and the feeder are containers there, reached over SSH."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import structlog

from openclaw_core.cluster.docker.containers import Engine, Found
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import HostError, Hosts
from openclaw_core.cluster.job import ServiceJob, kept_attempts, kept_log
from openclaw_core.cluster.kept_logs import keep_log
from openclaw_core.cluster.orphans import end_orphans, find_holders, record
from openclaw_core.cluster.ray_head import dashboard_url
from openclaw_core.cluster.ray_hosts import KEPT_LINES, RayHosts, engines_of
from openclaw_core.cluster.run_on_hosts import project_digest, push_project, push_run
from openclaw_core.cluster.runtime import FEEDER, FeederState
from openclaw_core.cluster.specs import command_spec, host_path, ray_specs, run_path
from openclaw_core.config.schema import RunConfig
from openclaw_core.planning.placement import place_ranks
from openclaw_core.rundir import RunDir

log = structlog.get_logger(__name__)

TAIL_LINES = 15


class HostsRuntime:
    """See Runtime. A context manager: connections are open during the block."""

    look_every_s = 5.0

    def __init__(self, config: RunConfig, run: RunDir) -> None:
        self._config, self._run = config, run
        self._stack = contextlib.ExitStack()
        self._hosts = Hosts(config.cluster)

    def __enter__(self) -> Self:
        self._stack.enter_context(self._hosts)
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def launch(self, *, unchanged: bool = False) -> tuple[bool, str]:
        """See Runtime."""
        if not unchanged:
            push_project(self._run, self._hosts)
        push_run(self._config, self._run, self._hosts)
        self._ray.keep_logs()  # a dead container is about to be removed
        if not self._ray.alive():
            self._keep_lost_logs()
        reused = self._ray.launch(ray_specs(self._config, self._run.run_id, place_ranks(self._config), self._code))
        names = ", ".join(host.name for host in self._hosts)
        return reused, f"Ray on {names}, dashboard {dashboard_url(self._config)}"

    def ray_alive(self) -> bool:
        """See Runtime."""
        return self._ray.alive()

    def service_command(self) -> Sequence[str]:
        """See Runtime."""
        run_dir = str(run_path(self._run.run_id))
        return (self._config.cluster.python, "-m", "openclaw_core.cli", "serve", "--run-dir", run_dir)

    def keep_logs(self) -> None:
        """See Runtime. What cannot be had is said and is no failure: the run ends all the same."""
        self._ray.keep_logs()
        inside = run_path(self._run.run_id) / self._run.metrics_file.name
        try:
            self._run.metrics_file.write_bytes(self._hosts.head.read(host_path(self._config.cluster.head, inside)))
        except HostError as error:  # before the first step there is none
            log.info("metrics_not_kept", reason=str(error))
        if self._ray.alive():
            try:
                ServiceJob(self._config, self._run).keep_logs()
            except ClusterError as error:
                log.warning("service_logs_not_kept", reason=str(error))

    def start_feeder(self) -> FeederState:
        """See Runtime."""
        if (earlier := self._feeder_container()) is not None:
            self._keep_feeder_log(earlier)
        command = ("feed", "--run-dir", str(run_path(self._run.run_id)))
        head = self._config.cluster.head
        self._engine.start(command_spec(self._config, self._run.run_id, head, FEEDER, command, self._code))
        state = self.feeder()
        assert state is not None
        return state

    def feeder(self) -> FeederState | None:
        """See Runtime."""
        found = self._feeder_container()
        if found is None:
            return None
        alive = found.state == "running"
        tail = "" if alive else "\n".join(self._keep_feeder_log(found).splitlines()[-TAIL_LINES:])
        return FeederState(alive, f"container {found.name} on {self._config.cluster.head.name}", str(self._feeder_log), tail)

    def feeder_finished(self) -> bool:
        """See Runtime."""
        found = self._feeder_container()
        return found is not None and found.state == "exited" and found.exit_code == 0

    def stop_feeder(self) -> None:
        """See Runtime."""
        if (found := self._feeder_container()) is not None:
            self._keep_feeder_log(found)
            self._engine.remove([found.name])

    def stop(self) -> str:
        """See Runtime. A process that outlives its container keeps its NPU's memory: those of the run's are ended."""
        with_npus = [host for host in self._hosts if host.config.npus]
        held = {host.name: record(find_holders(host), self._run.run_id) for host in with_npus}
        removed = self._ray.remove()
        for host in with_npus:
            end_orphans(host, held[host.name], lambda line: log.warning("npu_process", line=line))
        return f"removed {', '.join(removed)}" if removed else "no container of the run is left"

    def _keep_lost_logs(self) -> None:
        """Of the attempts of the service that ended with a head's container: it is about to be removed, and they with it.

        They also say which number the next attempt has.
        """
        try:
            for attempt in itertools.count(kept_attempts(self._run) + 1):
                text = self._ray.job_log(f"{self._run.run_id}-{attempt}")
                if text is None:
                    break
                kept_log(self._run, attempt).write_bytes(text)
        except ClusterError as error:
            log.warning("service_logs_not_kept", reason=str(error))

    def _feeder_container(self) -> Found | None:
        return next((each for each in self._engine.of_run(self._run.run_id) if each.role == FEEDER), None)

    def _keep_feeder_log(self, container: Found) -> str:
        text = self._engine.logs(container.name, tail=KEPT_LINES)
        keep_log(self._feeder_log, container.id, text)
        return text

    @property
    def _feeder_log(self) -> Path:
        return self._run.logs / f"{FEEDER}.log"

    @cached_property
    def _engines(self) -> dict[str, Engine]:
        return self._stack.enter_context(engines_of(self._hosts))

    @property
    def _engine(self) -> Engine:
        """The head's, where the feeder is: no other host is asked, which may be away."""
        return self._engines[self._config.cluster.head.name]

    @property
    def _code(self) -> str:
        return project_digest(self._run)

    @cached_property
    def _ray(self) -> RayHosts:
        return RayHosts(self._config, self._run, self._hosts, self._engines)
