"""Runs that need the same hosts wait for each other: a global concurrency limit of Prefect for each host, and who has it.

Prefect's own ``concurrency()`` does not fit a training of days: it gives a lease up after three renewals that failed within
seconds, as in a restart of the server; a killed attempt's retry would wait for its own lease; and no other process can go on
with it. Hence the same limits and leases through Prefect's client, and a variable for each host that says who has it.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from prefect import task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.logging import get_run_logger
from prefect.variables import Variable

from openclaw_core.config import RunConfig
from tasks.policy import MUST_BE_TRUE_NOW

LEASE_S = 300.0
"""After this time without a renewal the hosts are free: whoever had them has died without a word."""
RENEW_EVERY_S = 30.0
LOOK_EVERY_S = 5.0

Logger = Any
"""One of the standard library's or of structlog's."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants which hosts."""

    hosts: tuple[str, ...]
    run_id: str
    flow_run_id: UUID

    @classmethod
    def of(cls, config: RunConfig, run_id: str, flow_run_id: UUID | str) -> Claim:
        """Hosts by their address, or this machine by its name: presets that share one share its limit."""
        cluster = config.cluster
        hosts = {host.reached_at for host in cluster.hosts} if cluster.containers else {socket.gethostname()}
        return cls(tuple(sorted(hosts)), run_id, UUID(str(flow_run_id)))

    @property
    def limits(self) -> list[str]:
        """Names of the limits, as the UI shows them under Concurrency."""
        return [f"openclaw-host-{host}" for host in self.hosts]


class Hold:
    """The hosts of a claim while they are held; its lease is renewed by a thread until ``end``."""

    def __init__(self, claim: Claim, lease: UUID, logger: Logger) -> None:
        self.claim = claim
        self._lease, self._logger = lease, logger
        self.lost = False
        """Whether another one may be on the hosts, as far as Prefect knows."""
        self._ended = threading.Event()
        context = contextvars.copy_context()  # Prefect's settings, where they are not those of the process
        self._thread = threading.Thread(target=lambda: context.run(self._keep), name="hosts-lease", daemon=True)
        _write_holder(claim, lease)
        self._thread.start()

    def end(self, *, release: bool) -> None:
        """Stop renewing; without ``release``, the hosts stay held for LEASE_S, for another process to go on with."""
        self._ended.set()
        self._thread.join(10)
        if not release:
            return
        try:
            for host in self.claim.hosts:  # before they are free: the next run writes them
                Variable.unset(_variable(host))
            with get_client(sync_client=True) as client:
                client.release_concurrency_slots_with_lease(self._lease)
        except httpx.HTTPError as error:  # the work of the run is done all the same
            self._logger.warning("%s: free only in %g s: %s", ", ".join(self.claim.hosts), LEASE_S, error)

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_EVERY_S):
            try:
                self.renew()
            except httpx.HTTPError as error:  # the server may be on its way up again: the training does not depend on it
                self._logger.info("the hold on %s is not renewed yet: %s", ", ".join(self.claim.hosts), error)

    def renew(self) -> None:
        """Once, or have the hosts anew where the server has forgotten the lease. Raises httpx.HTTPError."""
        if not self.lost and renew(self._lease):
            return
        if (lease := acquire(self.claim)) is not None:
            self._lease, self.lost = lease, False
            _write_holder(self.claim, lease)
        elif not self.lost:
            self.lost = True
            self._logger.warning(
                "Prefect has lost the hold of this run on %s, and counts the place as taken; the run goes on, and another "
                "one is refused by its env-check",
                ", ".join(self.claim.hosts),
            )


@contextlib.contextmanager
def hosts_held(claim: Claim, handed_over: tuple[type[BaseException], ...]) -> Iterator[Hold]:
    """Hold the hosts for the block, waiting for them as a task of the run where another one has them.

    An attempt takes up what the last one of the same flow run held, however that ended. After one of ``handed_over`` they
    stay held: another process is to go on with them.
    """
    _create_limits(claim)
    lease = taken_up(claim) or acquire(claim)
    hold = Hold(claim, lease or UUID(wait_for_hosts(claim)), get_run_logger())
    release = True
    try:
        yield hold
    except handed_over:
        release = False
        raise
    finally:
        hold.end(release=release)


@task(name="wait-for-hosts", task_run_name="wait-for-hosts", tags=["stage"], **MUST_BE_TRUE_NOW)
def wait_for_hosts(claim: Claim) -> str:
    """Wait until no other run has any of the hosts, saying which one it is; the lease."""
    logger, told = get_run_logger(), ""
    while True:
        try:
            who = holders(claim)
            if (lease := acquire(claim)) is not None:
                logger.info("%s: free now", ", ".join(claim.hosts))
                return str(lease)
        except httpx.HTTPError as error:
            who = f"Prefect's server does not answer as it should: {error}"
        if who != told:
            logger.info("waiting: %s; this run starts by itself afterwards", who)
            told = who
        time.sleep(LOOK_EVERY_S)


def holders(claim: Claim) -> str:
    """Who has the hosts of the claim, in words."""
    known = {host: holder for host in claim.hosts if (holder := _read_holder(host))}
    if not known:
        # A server that keeps leases in memory alone has forgotten one when it was started again.
        forget = "; ".join(f"prefect global-concurrency-limit update {limit} --active-slots 0" for limit in claim.limits)
        return f"a place of {', '.join(claim.hosts)} is taken by nobody that is known; if that stays so: {forget}"
    return ", ".join(f"host {host} is held by run {holder['run']}" for host, holder in known.items())


def acquire(claim: Claim) -> UUID | None:
    """A lease on all the hosts at once, or None where another one has one of them. Raises httpx.HTTPError."""
    holder = ConcurrencyLeaseHolder(type="flow_run", id=claim.flow_run_id)
    with get_client(sync_client=True) as client:
        try:
            answer = client.increment_concurrency_slots_with_lease(claim.limits, 1, "concurrency", LEASE_S, holder)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.LOCKED:
                raise
            return None
    return UUID(answer.json()["lease_id"])


def taken_up(claim: Claim) -> UUID | None:
    """The lease of an earlier attempt of the same flow run, or of the process that stood in for it, if it still holds."""
    held = [_read_holder(host) for host in claim.hosts]
    if any(holder.get("flow_run") != str(claim.flow_run_id) for holder in held):
        return None
    lease = UUID(held[0]["lease"])
    return lease if renew(lease) else None


def renew(lease: UUID) -> bool:
    """Whether the lease still holds; for LEASE_S from now, then. Raises httpx.HTTPError."""
    with get_client(sync_client=True) as client:
        try:
            client.renew_concurrency_lease(lease, LEASE_S)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.GONE:
                raise
            return False
    return True


def _create_limits(claim: Claim) -> None:
    """One that is there is left alone: a person may have raised it."""
    with get_client(sync_client=True) as client:
        for name in claim.limits:
            _create_limit(client, name)


def _create_limit(client: SyncPrefectClient, name: str) -> None:
    try:
        client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        with contextlib.suppress(ObjectAlreadyExists):  # another run has made it meanwhile
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))


def _write_holder(claim: Claim, lease: UUID) -> None:
    for host in claim.hosts:
        value = {"run": claim.run_id, "flow_run": str(claim.flow_run_id), "lease": str(lease)}
        Variable.set(_variable(host), value, overwrite=True)


def _read_holder(host: str) -> dict[str, str]:
    """Empty where nobody has it."""
    value: Any = Variable.get(_variable(host))
    return value or {}


def _variable(host: str) -> str:
    return "openclaw_host_" + re.sub("[^a-z0-9]", "_", host.lower())
