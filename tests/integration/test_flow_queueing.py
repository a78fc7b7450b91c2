"""Runs that need the same hosts, on a real Prefect server: who waits, who is told what, and what a lost lease does."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run as this_run

from flows import queueing
from flows.queueing import Claim, acquire, holders, hosts_held, renew, taken_up
from openclaw_core.config import load_config
from tests.integration.prefect_runs import task_runs

pytestmark = [pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(180)]


class Abandoned(BaseException):
    """As a suspension or a cancellation comes."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "LOOK_EVERY_S", 0.2)
    monkeypatch.setattr(queueing, "RENEW_EVERY_S", 0.2)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[Any]]]:
    """Calls something in a thread, with this test's server."""
    with ThreadPoolExecutor(4) as pool:
        yield lambda work, *arguments: pool.submit(contextvars.copy_context().run, work, *arguments)


def claim_of(run_id: str, *hosts: str) -> Claim:
    return Claim(hosts, run_id, UUID(str(this_run.id)))


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def lease_of(claim: Claim) -> UUID:
    lease = taken_up(claim)
    assert lease is not None
    return lease


def release(lease: UUID) -> None:
    """Behind its holder's back."""
    with get_client(sync_client=True) as client:
        client.release_concurrency_slots_with_lease(lease)


def free(host: str) -> bool:
    claim = Claim((host,), "probe", uuid4())
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(claim.limits[0]).active_slots == 0


def test_a_run_waits_for_the_one_that_shares_a_host_and_then_starts_by_itself(elsewhere: Callable[..., Future[Any]]):
    begun, go_on, order = threading.Event(), threading.Event(), []

    @flow
    def first() -> None:
        with hosts_held(claim_of("run-1", "q-a", "q-b"), handed_over=()):
            begun.set()
            go_on.wait(60)
            order.append("first")

    @flow
    def second() -> str:
        ids.append(str(this_run.id))
        with hosts_held(claim_of("run-2", "q-b", "q-c"), handed_over=()):
            order.append("second")
        return ids[0]

    ids: list[str] = []
    held = elsewhere(first)
    assert begun.wait(60)
    waits = elsewhere(second)
    until(lambda: ids)
    assert holders(Claim(("q-b", "q-c"), "run-2", UUID(ids[0]))) == "host q-b is held by run run-1"
    assert free("q-c"), "all of them or none: a run that waits keeps no other one waiting"
    go_on.set()
    assert [(task.name, task.state_name) for task in task_runs(UUID(waits.result(60)))] == [("wait-for-hosts", "Completed")]
    held.result(60)
    assert order == ["first", "second"]
    assert all(free(host) for host in ("q-a", "q-b", "q-c"))


def test_a_run_that_finds_its_hosts_free_has_no_such_task():
    @flow
    def alone() -> str:
        with hosts_held(claim_of("run-1", "q-d"), handed_over=()):
            time.sleep(0.1)
        env()
        return str(this_run.id)

    @task(name="env-check", task_run_name="env-check")
    def env() -> None:
        """What comes next."""

    assert [task.name for task in task_runs(UUID(alone()))] == ["env-check"]


def test_a_run_that_fails_frees_its_hosts():
    @flow
    def fails() -> None:
        with hosts_held(claim_of("run-1", "q-e"), handed_over=()):
            assert not free("q-e")
            raise RuntimeError("no step")

    with pytest.raises(RuntimeError, match="no step"):
        fails()
    assert free("q-e")


def test_the_next_attempt_of_a_run_goes_on_with_what_the_last_one_held():
    """As its process was killed, or it was suspended; another run waits all the while."""
    claim = Claim(("q-f",), "run-1", uuid4())

    def hold(how: Callable[[], None]) -> None:
        with hosts_held(claim, handed_over=(Abandoned,)):
            how()

    def abandon() -> None:
        raise Abandoned

    @flow
    def attempts() -> None:
        with pytest.raises(Abandoned):
            hold(abandon)
        assert not free("q-f")
        assert acquire(Claim(("q-f",), "run-2", uuid4())) is None
        assert taken_up(Claim(("q-f",), "run-1 again", uuid4())) is None, "another flow run of the same run waits"
        hold(lambda: None)

    attempts()
    assert free("q-f")


def test_a_lease_that_the_server_has_forgotten_is_taken_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queueing, "RENEW_EVERY_S", 1000)

    @flow
    def forgotten() -> None:
        claim = claim_of("run-1", "q-g")
        with hosts_held(claim, handed_over=()) as hold:
            release(lease_of(claim))
            assert free("q-g")
            hold.renew()
            assert not free("q-g")
            assert renew(lease_of(claim))

    forgotten()
    assert free("q-g")


def test_a_lease_that_is_lost_to_another_run_does_not_end_this_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queueing, "RENEW_EVERY_S", 1000)

    @flow
    def lost() -> None:
        claim = claim_of("run-1", "q-h")
        with hosts_held(claim, handed_over=()) as hold:
            release(lease_of(claim))
            other = acquire(Claim(("q-h",), "run-2", uuid4()))
            assert other is not None
            hold.renew()
            assert hold.lost
            release(other)
            hold.renew()
            assert not hold.lost
            assert renew(lease_of(claim))

    lost()
    assert free("q-h")


def test_presets_that_share_a_host_share_its_limit():
    two = load_config("4b-2nodes")
    one = load_config(
        "4b-1node", {"cluster.hosts": [two.cluster.hosts[0].model_dump() | {"roles": ["train", "rollout", "prm"]}]}
    )
    limits = [set(Claim.of(config, "r", uuid4()).limits) for config in (two, one)]
    assert len(limits[0]) == 2
    assert limits[1] < limits[0]
    local = Claim.of(load_config("local-cpu"), "r", uuid4())
    assert local.limits == [f"openclaw-host-{queueing.socket.gethostname()}"]
