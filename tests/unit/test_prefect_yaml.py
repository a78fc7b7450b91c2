"""prefect.yaml and the flow's parameters, without a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import ValidationError, validate

from flows.evaluate import evaluate_run
from flows.feeder import feeder
from flows.openclaw import openclaw
from flows.stage import STAGES, stage
from flows.teardown import teardown_run
from openclaw_core.config import load_config, preset_names
from openclaw_core.stages import PREPARE

ROOT = Path(__file__).parents[2]
PREFECT_YAML = yaml.safe_load((ROOT / "prefect.yaml").read_text())
DEPLOYED: dict[str, dict[str, Any]] = {deployment["name"]: deployment for deployment in PREFECT_YAML["deployments"]}
DEPLOYMENTS = {name: it for name, it in DEPLOYED.items() if it["entrypoint"] == "flows/openclaw.py:openclaw"}
BESIDE_A_RUN = {name: it for name, it in DEPLOYED.items() if name not in DEPLOYMENTS}


def refuse(parameters: dict[str, Any]) -> str:
    """What the server says of bad parameters, before a run exists."""
    with pytest.raises(ValidationError) as error:
        validate(parameters, parameter_schema(openclaw).model_dump_for_openapi(), raise_on_error=True)
    return str(error.value)


def test_every_preset_has_its_deployment():
    assert sorted(DEPLOYMENTS) == preset_names()


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=list(DEPLOYMENTS))
def test_a_deployment_names_its_preset_and_nothing_else(deployment: dict[str, Any]):
    assert deployment["parameters"] == {"preset": deployment["name"]}
    assert load_config(deployment["name"]).preset == deployment["name"]
    assert deployment["enforce_parameter_schema"]
    validate(deployment["parameters"], parameter_schema(openclaw).model_dump_for_openapi(), raise_on_error=True)


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=list(DEPLOYMENTS))
def test_an_entrypoint_is_the_flow(deployment: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assert load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False).name == "openclaw"


@pytest.mark.parametrize("deployment", DEPLOYED.values(), ids=list(DEPLOYED))
def test_no_deployment_has_a_limit_whose_lease_ends_the_run(deployment: dict[str, Any]):
    assert "concurrency_limit" not in deployment
    assert deployment["work_pool"] == PREFECT_YAML["definitions"]["pool"]
    assert deployment["work_pool"]["name"] == "openclaw"


def test_these_flows_are_deployed_beside_a_run():
    assert set(BESIDE_A_RUN) == {"evaluate", "feeder", "teardown", *STAGES}


@pytest.mark.parametrize(("name", "flow"), [("evaluate", evaluate_run), ("feeder", feeder), ("teardown", teardown_run)])
def test_a_flow_beside_a_run_can_be_deployed(name: str, flow: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    deployment = BESIDE_A_RUN[name]
    assert load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False).name == flow.name
    assert deployment["enforce_parameter_schema"]


@pytest.mark.parametrize("name", STAGES)
def test_each_stage_has_a_deployment_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    deployment = BESIDE_A_RUN[name]
    assert (
        load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False).name == stage.name == "openclaw-stage"
    )
    assert deployment["parameters"] == {"name": name}
    assert deployment["enforce_parameter_schema"]
    validate(deployment["parameters"], parameter_schema(stage).model_dump_for_openapi(), raise_on_error=True)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"steps": 0}, "steps.*0 is less than the minimum of 1"),
        ({"steps": -3}, "steps.*-3 is less than the minimum of 1"),
        ({"steps": "many"}, "steps"),
        ({"overrides": 5}, "overrides"),
    ],
)
def test_bad_parameters_are_refused_by_the_schema(parameters: dict[str, Any], reason: str):
    assert re.search(reason, refuse(parameters), re.DOTALL)


def test_every_parameter_of_the_form_is_explained():
    for flow in (openclaw, stage, feeder, evaluate_run, teardown_run):
        undescribed = [name for name, schema in parameter_schema(flow).properties.items() if not schema.get("description")]
        assert not undescribed, flow.name


def test_each_stage_before_training_can_be_run_alone():
    assert list(STAGES) == [name for name, _ in PREPARE]
    assert all(task.name == name for name, task in STAGES.items())
