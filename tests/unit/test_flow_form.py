"""The form of a deployment: groups that are parts of the configuration, and what the API refuses before a run exists."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import ValidationError, validate
from pydantic import TypeAdapter

from flows.openclaw import openclaw
from flows.parameters import config_of
from openclaw_core.config import ConfigError, load_config, preset_names
from openclaw_core.config.load import parameter_names

FORM = parameter_schema(openclaw).model_dump_for_openapi()
GROUPS = {name: parameter["properties"] for name, parameter in FORM["properties"].items() if "properties" in parameter}
FIELDS = [(group, name) for group, fields in GROUPS.items() for name in fields]
KEPT = (
    "type",
    "enum",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "pattern",
    "items",
    "minItems",
    "maxItems",
)


def refusal(parameters: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as error:
        validate(parameters, FORM, raise_on_error=True)
    return str(error.value)


def given(**parameters: Any) -> dict[str, Any]:
    """The parameters as the flow gets them."""
    return openclaw.validate_parameters({"preset": "local-cpu", **parameters})


def test_what_a_person_changes_is_in_a_group():
    assert list(GROUPS) == [
        "rollout",
        "loss",
        "optimizer",
        "train",
        "judge",
        "feeder",
        "evaluation",
        "health",
        "tracking",
        "ports",
    ]
    assert {f"{group}.{name}" for group, name in FIELDS} <= set(parameter_names())


@pytest.mark.parametrize(("group", "name"), FIELDS)
def test_a_field_has_its_bounds_its_explanation_and_what_holds_without_it(group: str, name: str):
    section = TypeAdapter(type(getattr(load_config("local-cpu"), group))).json_schema()["properties"][name]
    value = next((kind for kind in section.get("anyOf", []) if kind != {"type": "null"}), section)
    shown = GROUPS[group][name]
    if value["type"] == "boolean":
        value = {"enum": [True, False]}
    assert {key: shown[key] for key in KEPT if key in shown} == {key: value[key] for key in KEPT if key in value}
    assert shown["title"] == name
    assert shown["description"].startswith(section["description"])
    assert "default:*" in shown["description"]
    assert "default" not in shown, "the form sends a field's default where nobody has touched it"


def test_the_explanation_tells_the_default_and_what_presets_say_instead():
    assert GROUPS["rollout"]["batch_size"]["description"].endswith("*whole number ≥ 1; default:* `16`; `4` in 2nodes-sim")


@pytest.mark.parametrize("field", ["loss.opd_center", "train.sequence_parallel"])
def test_a_switch_is_a_choice_that_nobody_has_made(field: str):
    """Prefect's form sends false for a boolean that nobody has touched, against a preset that says true."""
    group, name = field.split(".")
    assert "type" not in GROUPS[group][name]
    assert given(**{group: {name: True}})[group] == {name: True}


def test_a_field_of_a_group_leaves_the_others_as_the_preset_says():
    config = config_of(given(preset="2nodes-sim", rollout={"temperature": 0.9}, train={"save_interval": 3}))
    preset = load_config("2nodes-sim")
    assert config.rollout == preset.rollout.model_copy(update={"temperature": 0.9})
    assert config.train == preset.train.model_copy(update={"save_interval": 3})
    assert config.loss == preset.loss


def test_null_is_as_the_preset_says():
    assert given(rollout={"temperature": None, "batch_size": 8}, loss=None)["rollout"] == {"batch_size": 8}
    assert config_of(given(rollout={"temperature": None}, loss=None)) == load_config("local-cpu")


def test_overrides_and_steps_are_laid_over_the_groups():
    parameters = given(rollout={"batch_size": 8, "temperature": 0.9}, overrides={"rollout.batch_size": 4}, steps=3)
    config = config_of(parameters)
    assert (config.rollout.batch_size, config.rollout.temperature, config.train.steps) == (4, 0.9, 3)


def test_parameters_are_as_the_api_keeps_them():
    """The hook on cancellation has them from there, and has to find the same run."""
    told = {"rollout": {"batch_size": 8}, "optimizer": {"lr": 1e-5}, "run_id": "mine"}
    assert {name: value for name, value in given(**told).items() if name in told} == told


def test_the_presets_are_a_choice():
    assert FORM["properties"]["preset"]["enum"] == preset_names()


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"preset": "local-gpu"}, "'preset'. Failure reason: 'local-gpu' is not one of ['2nodes-sim', "),
        ({"steps": 0}, "'steps'. Failure reason: 0 is less than the minimum of 1"),
        ({"rollout": {"batch_size": 0}}, "'rollout.batch_size'. Failure reason: 0 is less than the minimum of 1"),
        ({"rollout": {"temperature": 2.5}}, "'rollout.temperature'. Failure reason: 2.5 is greater than the maximum of 2"),
        ({"optimizer": {"lr": 0}}, "'optimizer.lr'. Failure reason: 0 is less than or equal to the minimum of 0"),
        ({"optimizer": {"betas": [0.9]}}, "'optimizer.betas'. Failure reason: [0.9] is too short"),
        ({"loss": {"subset_mode": "all"}}, "'loss.subset_mode'. Failure reason: 'all' is not one of ['student', "),
        ({"judge": {"votes": 16}}, "'judge.votes'. Failure reason: 16 is greater than the maximum of 15"),
        ({"ports": {"gateway": 0}}, "'ports.gateway'. Failure reason: 0 is less than the minimum of 1"),
        ({"rollout": {"batch_sizes": 8}}, "'rollout'. Failure reason: Additional properties are not allowed ('batch_sizes' "),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_name(parameters: dict[str, Any], reason: str):
    assert f"Validation failed for field {reason}" in refusal(parameters)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"train": {"steps_per_rollout": 3}},
            r"train\.steps_per_rollout=3 does not divide rollout\.batch_size=16; choose a divisor",
        ),
        ({"judge": {"client": "openai"}}, r"judge\.client=openai needs judge\.base_urls"),
        ({"ports": {"gateway": 30001}}, r"ports\.control and ports\.gateway are both 30001"),
    ],
)
def test_what_does_not_go_together_is_refused_by_the_whole_configuration(parameters: dict[str, Any], message: str):
    validate(parameters, FORM, raise_on_error=True)
    with pytest.raises(ConfigError, match=message):
        config_of(given(**parameters))


def test_no_field_of_the_form_holds_a_secret():
    names = [*FORM["properties"], *(name for _, name in FIELDS)]
    assert not [name for name in names if name.endswith(("_token", "password", "secret", "api_key"))]
    assert "Name of a Secret block" in FORM["properties"]["judge_key"]["description"]
