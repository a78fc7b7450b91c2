"""The service's job: submitted to a Ray that has only just come up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.cluster import job as module
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.job import ServiceJob
from openclaw_core.config import load_config
from openclaw_core.rundir import create_run

DROPPED = "('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))"
BUSY = "Request failed with status code 500: No available agent to submit job, please try again later.."


class JobAPI:
    """Ray's client, which answers a submission with one error after the other, then takes it."""

    def __init__(self, errors: Iterator[str]) -> None:
        self._errors = errors
        self.submitted: list[str] = []

    def __call__(self, *_arguments: Any, **_options: Any) -> JobAPI:
        return self

    def list_jobs(self) -> list[Any]:
        return []

    def submit_job(self, *, submission_id: str, **_options: Any) -> str:
        for error in self._errors:
            raise RuntimeError(error)
        self.submitted.append(submission_id)
        return submission_id


def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *errors: str) -> tuple[ServiceJob, JobAPI]:
    api = JobAPI(iter(errors))
    monkeypatch.setattr(module, "JobSubmissionClient", api)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    run = create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "r")
    return ServiceJob(run.config(), run), api


def test_it_waits_for_the_agent_that_starts_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    waiting, api = job(tmp_path, monkeypatch, BUSY, BUSY)
    assert waiting.submit(["serve"]) == "r-1"
    assert api.submitted == ["r-1"]


def test_it_waits_no_longer_than_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "AGENT_DEADLINE_S", -1.0)
    late, _ = job(tmp_path, monkeypatch, BUSY, BUSY)
    with pytest.raises(ClusterError, match="No available agent"):
        late.submit(["serve"])


def test_another_refusal_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    refused, api = job(tmp_path, monkeypatch, "Request failed with status code 400: no such thing")
    with pytest.raises(ClusterError, match="no such thing"):
        refused.submit(["serve"])
    assert api.submitted == []


def test_a_connection_that_is_dropped_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked_again, api = job(tmp_path, monkeypatch, DROPPED, DROPPED)
    assert asked_again.submit(["serve"]) == "r-1"
    assert api.submitted == ["r-1"]
    dropped, _ = job(tmp_path, monkeypatch, *[DROPPED] * 3)
    with pytest.raises(ClusterError, match="Connection aborted"):
        dropped.submit(["serve"])


def test_a_submission_whose_answer_was_lost_is_found_to_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    taken, _ = job(tmp_path, monkeypatch, DROPPED, "Job with submission_id r-1 already exists. Please use another one.")
    assert taken.submit(["serve"]) == "r-1"
