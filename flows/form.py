"""Parameters of the flows as the form of a deployment shows them, and as the API checks them before a run exists.

Parts of the configuration are optional groups, whose fields are those of the sections with their types, bounds and
descriptions; what is left empty is as the preset says. Parts nested in a section and mappings stay out, for the form's
sake: they have their dotted names in ``overrides``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, GetPydanticSchema, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema
from typing_extensions import TypedDict

from openclaw_core.config import preset_names
from openclaw_core.config.document import explained
from openclaw_core.config.schema import RunConfig
from openclaw_core.config.section import Section

SET_HERE, AS_PRESET = "set here", "as the preset says"


def _optional(kind: Any) -> GetPydanticSchema:
    """The kind or None, which the form lets choose by these names."""
    return GetPydanticSchema(lambda _, handler: handler(Union[kind, None]), _bounds_beside_choice)  # noqa: UP007


def _bounds_beside_choice(core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
    """Were bounds inside one of the alternatives, the form would say of a bad value no more than that it fits neither."""
    value = dict(handler.resolve_ref_schema(handler(core)["anyOf"][0]))
    choice = [{"type": value.pop("type"), "title": SET_HERE}, {"type": "null", "title": AS_PRESET}]
    return {**value, "anyOf": choice}


def _group(name: str, without: Collection[str] = ()) -> GetPydanticSchema:
    """Any of a section's fields, as a dict of those that are given; None for none."""
    section: Any = RunConfig.model_fields[name].annotation
    fields = {key: _field(f"{name}.{key}", info) for key, info in section.model_fields.items() if key not in without}
    shown = {key: field for key, field in fields.items() if field is not None}
    group = TypedDict(section.__name__, shown, total=False)  # pyright: ignore[reportArgumentType]
    group.__pydantic_config__ = ConfigDict(extra="forbid")  # pyright: ignore[reportAttributeAccessIssue]
    return _optional(Annotated[group, BeforeValidator(_without_null)])


def _field(name: str, info: FieldInfo) -> Any:
    """Its type without None, its bounds and its description; None for what the form has no place for."""
    kind = info.annotation
    if get_origin(kind) in (Union, UnionType):
        [kind] = [part for part in get_args(kind) if part is not NoneType]
    if get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, Section)):
        return None
    # Prefect's form draws a boolean as a switch that is off, and sends that where nobody has touched it.
    shown = [WithJsonSchema({"enum": [True, False]})] if kind is bool else []
    described = Field(title=name.rpartition(".")[2], description=explained(name, info))
    return Annotated[(kind, *info.metadata, *shown, described)]  # pyright: ignore[reportInvalidTypeForm]


def _without_null(values: Any) -> Any:
    """The API lets null pass for a field, as for one that was emptied."""
    return {name: value for name, value in values.items() if value is not None} if isinstance(values, Mapping) else values


# Bounds alone: Prefect's form takes the explanations of a flow's parameters from the flow's docstring. Names are text that may
# be empty rather than None, for which the form would draw a choice between the two.
Preset = Annotated[str, WithJsonSchema({"type": "string", "enum": preset_names()})]
Steps = Annotated[int | None, _optional(Annotated[int, Field(ge=1)])]
Minutes = Annotated[float, Field(gt=0)]
Overrides = Annotated[dict[str, Any] | None, _optional(dict[str, Any])]

Rollout = Annotated[dict[str, Any] | None, _group("rollout")]
Loss = Annotated[dict[str, Any] | None, _group("loss")]
Optimizer = Annotated[dict[str, Any] | None, _group("optimizer")]
Train = Annotated[dict[str, Any] | None, _group("train", without=["steps"])]
Judge = Annotated[dict[str, Any] | None, _group("judge")]
Feeder = Annotated[dict[str, Any] | None, _group("feeder")]
Evaluation = Annotated[dict[str, Any] | None, _group("evaluation")]
Health = Annotated[dict[str, Any] | None, _group("health")]
Tracking = Annotated[dict[str, Any] | None, _group("tracking")]
Ports = Annotated[dict[str, Any] | None, _group("ports")]
