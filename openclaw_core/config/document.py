"""docs/CONFIG.md: every parameter, from the fields themselves. `python -m openclaw_core.config.document` prints it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, cast, get_args, get_origin

import annotated_types as bounds
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from openclaw_core.config.load import PRESETS, preset_names
from openclaw_core.config.schema import RunConfig

_HEAD = """# Parameters

Every parameter of a run with its dotted name, as `--set`, `make run SET=…` and the deployment's form take it. Presets
(`openclaw_core/config/presets/`) fill the tree, and what is given overrides them; `openclaw-rl config --preset 4b-2nodes`
prints the values of one. Bounds are checked before anything is started.

This page is made from the code: `python -m openclaw_core.config.document > docs/CONFIG.md`.
"""


def document() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for name, field in RunConfig.model_fields.items():
        section = _section(field)
        if section is not None:
            parts.append(f"## {name}\n\n{_first_line(section)}\n\n{_table(name, section, _presets())}")
    return "\n".join(parts)


def explained(name: str, field: FieldInfo) -> str:
    """What one parameter is for, what it may be, and what it is where nobody says: one line of Markdown."""
    return f"{field.description} *{_allowed(field)}; default:* {_default(name, field, _presets())}"


@cache
def _presets() -> dict[str, Any]:
    return {name: yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8")) for name in preset_names()}


def _table(prefix: str, section: type[BaseModel], presets: Mapping[str, Any]) -> str:
    lines = ["| parameter | value | default | what for |", "|---|---|---|---|"]
    for name, field in _leaves(prefix, section):
        cells = (f"`{name}`", _allowed(field), _default(name, field, presets), field.description or "")
        lines.append("| " + " | ".join(_cell(text) for text in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _leaves(prefix: str, section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        inner = _section(field)
        if inner is not None:
            yield from _leaves(f"{prefix}.{name}", inner)
        else:
            yield f"{prefix}.{name}", field


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds; None for a value, and for what is given whole, as a list of hosts."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _allowed(field: FieldInfo) -> str:
    limits = [
        f"{sign} {value}"
        for item in field.metadata
        for kind, sign, value in (
            (bounds.Ge, "≥", getattr(item, "ge", None)),
            (bounds.Gt, ">", getattr(item, "gt", None)),
            (bounds.Le, "≤", getattr(item, "le", None)),
            (bounds.Lt, "<", getattr(item, "lt", None)),
        )
        if isinstance(item, kind)
    ]
    return " ".join([_type(field.annotation), *limits])


def _type(annotation: Any) -> str:
    """As a person would say it: choices by name, and whether it may be left empty."""
    names: dict[Any, str] = {
        int: "whole number",
        float: "number",
        bool: "true, false",
        str: "text",
        type(None): "null",
        Any: "any",
    }
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    if annotation in names:
        return names[annotation]
    if not get_args(annotation):
        kind = cast(type[Any], annotation)
        return "object" if issubclass(kind, BaseModel) else kind.__name__.lower()
    arguments = get_args(annotation)
    if arguments and all(isinstance(choice, str | int) for choice in arguments):
        return ", ".join(f"`{choice}`" for choice in arguments)
    origin = get_origin(annotation)
    if origin in (list, tuple, dict, set, frozenset):
        inner = ", ".join(dict.fromkeys(_type(part) for part in arguments if part is not ...))
        return f"{'mapping' if origin is dict else 'list'} of {inner}"
    return " or ".join(_type(part) for part in arguments)


def _default(name: str, field: FieldInfo, presets: Mapping[str, Any]) -> str:
    """The field's default, and what presets set instead."""
    own = "" if field.is_required() else f"`{json.dumps(_plain(field.get_default(call_default_factory=True)))}`"
    said: dict[str, list[str]] = {}
    for preset, tree in presets.items():
        if (value := _at(tree, name.split("."))) is not None:
            said.setdefault(_short(value), []).append(preset)
    said.pop(own, None)
    return "; ".join(filter(None, [own, *(f"{value} in {', '.join(names)}" for value, names in said.items())]))


def _at(tree: Any, path: list[str]) -> Any:
    for part in path:
        tree = cast(Mapping[str, Any], tree).get(part) if isinstance(tree, Mapping) else None
    return tree


def _short(value: Any) -> str:
    text = json.dumps(value)
    return f"`{text}`" if len(text) <= 60 else "a value of its own"


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else json.loads(json.dumps(value, default=str))


def _first_line(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().splitlines()[0]


if __name__ == "__main__":
    print(document(), end="")  # noqa: T201 - its standard output is the page
