"""The flow `evaluate`, on what a run has left behind: a ledger and stored reports. What it asks: test_following.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from flows.evaluate import evaluate_run
from openclaw_core.config import load_config
from openclaw_core.evaluation.wilson import newcombe
from openclaw_core.ledger import Ledger
from openclaw_core.rundir import RunDir, create_run
from tests.unit.test_evaluation import report
from tests.unit.test_evaluation_sessions import tell

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = create_run(load_config("local-cpu", {"paths.runs": str(tmp_path), "feeder.personas": ["student"]}), "r")
    ledger = Ledger(run.ledger_file)
    for n, satisfied in enumerate((False, True, True, True)):
        tell(ledger, f"s{n}", "student", began=float(n), took=0.5, satisfied=satisfied)
    ledger.close()
    run.evaluation.mkdir()
    for label, count in (("before", 2), ("after", 8)):
        report(label, {"student": count}).write(run.evaluation / f"{label}.json")
    return run


def rows(key: str) -> list[dict[str, str]]:
    with get_client(sync_client=True) as client:
        (artifact,) = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    assert isinstance(artifact.data, str)
    return json.loads(artifact.data)


def test_sessions_to_convergence_are_a_table(run: RunDir):
    found = evaluate_run(str(run.path), kind="sessions").result()
    assert found["own_sessions"]["joint"]["mean"] == 4
    assert rows("evaluation-sessions")[0] == {
        "persona": "student",
        "sessions": "4.0",
        "trials": "1",
        "not converged": "0",
        "each": "4",
    }


def test_held_out_shares_are_compared_with_an_earlier_label(run: RunDir):
    found = evaluate_run(str(run.path), label="after", against="before").result()
    assert found["against"]["label"] == "before"
    assert found["against"]["satisfied"]["difference"] == pytest.approx(0.6)
    student, everybody = rows("evaluation-held-out")
    low, high = newcombe(2, 10, 8, 10)
    assert student["satisfied"] == everybody["satisfied"] == f"0.200 → 0.800: +0.600 [{low:.3f}, {high:.3f}]"
