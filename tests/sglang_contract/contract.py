"""The recorded facts of one version, and requests checked by them the way that version checks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"

VERSIONS = tuple(sorted(file.stem for file in FIXTURES.glob("*.json")))
"""Every recorded version."""


class Refusal(Exception):
    """A request that the version does not take: its status and the body of the answer."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status} {body}")
        self.status, self.body = status, body


@dataclass(frozen=True)
class Contract:
    """``facts``: fixtures/<version>.json."""

    version: str
    facts: dict[str, Any]

    @classmethod
    def load(cls, version: str) -> Contract:
        """Of a recorded version."""
        return cls(version, json.loads((FIXTURES / f"{version}.json").read_text()))

    @property
    def sessions(self) -> bool:
        """Whether weights come within a weight-update session."""
        return "/begin_weight_update" in self.facts["routes"]

    @property
    def gated(self) -> bool:
        """Whether /generate checks types strictly and refuses unknown sampling fields."""
        return bool(self.facts["gate"])

    def parse(self, request: str, body: Any) -> dict[str, Any]:
        """A body as its request model takes it: defaults filled in, unknown fields ignored. Raises Refusal, openai shape."""
        if not isinstance(body, dict):
            raise self.invalid("the body is no object")
        fields, taken = self.facts["requests"][request], {}
        for name, field in fields.items():
            if name not in body:
                if field["required"]:
                    raise self.invalid(f"field required: {name}")
                taken[name] = field["default"]
            elif not _fits(field["type"], body[name]):
                raise self.invalid(f"{name} is no {field['type']}")
            else:
                taken[name] = body[name]
        return taken

    def check_gate(self, body: Any) -> None:
        """The strict check of newer versions. Raises Refusal, gate shape."""
        if not self.gated:
            return
        _gate(self.facts["gate"]["GenerateRequest"], body, unknown_allowed=True)
        sampling = body.get("sampling_params") or {}
        for params in sampling if isinstance(sampling, list) else [sampling]:
            _gate(self.facts["gate"]["SamplingParams"], params, unknown_allowed=False)

    def sampling(self, params: dict[str, Any]) -> dict[str, Any]:
        """Sampling fields with their defaults. Raises TypeError for an unknown one, which 0.5.10 does not catch either."""
        known = self.facts["sampling_params"]
        if unknown := params.keys() - known.keys():
            raise TypeError(f"unexpected sampling fields {sorted(unknown)}")
        return {name: params.get(name, field["default"]) for name, field in known.items()}

    def invalid(self, message: str) -> Refusal:
        """The answer to a body that does not fit its model."""
        return Refusal(400, self.error(400, message, "Bad Request"))

    def error(self, status: int, message: str, kind: str | None = None) -> dict[str, Any]:
        """A body in the shape of the OpenAI routes."""
        values = {"object": "error", "message": message, "type": kind or str(status), "param": None, "code": status}
        assert values.keys() == self.facts["error_response"].keys()
        return values


def _gate(fields: dict[str, Any], body: Any, *, unknown_allowed: bool) -> None:
    if not isinstance(body, dict):
        raise Refusal(400, {"error": "invalid type: expected a map"})
    for name, value in body.items():
        if name not in fields:
            if not unknown_allowed:
                raise Refusal(400, {"error": f"unknown field `{name}`, expected one of {', '.join(fields)}"})
        elif value is not None and not _strict(fields[name]["type"], value):
            raise Refusal(400, {"error": f"invalid type for `{name}`: expected {fields[name]['type']}"})


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _all(check: Any, value: Any) -> bool:
    return isinstance(value, list) and all(check(item) for item in value)


_CHECKS: dict[str, Any] = {
    "bool": lambda value: isinstance(value, bool),
    "int": _integer,
    "float": lambda value: _integer(value) or isinstance(value, float),
    "str": lambda value: isinstance(value, str),
    "Int64List": lambda value: _all(_integer, value),
    "StringOrList": lambda value: isinstance(value, str) or _all(_CHECKS["str"], value),
    "BoolOrList": lambda value: isinstance(value, bool) or _all(_CHECKS["bool"], value),
    "Int64OrList": lambda value: _integer(value) or _all(_integer, value),
    "TokenIdsOrList": lambda value: _all(_integer, value) or _all(_CHECKS["Int64List"], value),
    "SamplingParamsOrList": lambda value: isinstance(value, dict) or _all(lambda item: isinstance(item, dict), value),
    "Dict[str, float]": lambda value: isinstance(value, dict) and all(_CHECKS["float"](item) for item in value.values()),
}


def _strict(kind: str, value: Any) -> bool:
    """Types that are not listed are of fields that a client for text does not send."""
    inner = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind
    return _CHECKS.get(inner, lambda _: True)(value)


def _fits(kind: str, value: Any) -> bool:
    """As pydantic does it: strings and numbers are converted into each other where they can be."""
    if kind.startswith("Literal["):
        return repr(value) in kind
    if kind == "int":
        return _integer(value) or (isinstance(value, str) and value.lstrip("-").isdecimal())
    if kind == "bool":
        return isinstance(value, bool) or value in ("true", "false", 0, 1)
    if kind == "str":
        return isinstance(value, str)
    if kind in ("List[str]", "list[str]"):
        return _all(_CHECKS["str"], value)
    return True
