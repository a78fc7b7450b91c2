"""Record the facts of one SGLang version's HTTP contract from its unpacked wheel: names, types, defaults, routes, flags.

    pip download --no-deps sglang==0.5.10 -d /tmp/wheels && python -m zipfile -e /tmp/wheels/sglang-*.whl /tmp/sglang
    python -m tests.sglang_contract.record /tmp/sglang tests/sglang_contract/fixtures/0.5.10.json

The source is parsed, never imported or run, and no code is taken over.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REQUESTS = (
    "GenerateReqInput",
    "PauseGenerationReqInput",
    "ContinueGenerationReqInput",
    "AbortReq",
    "InitWeightsUpdateGroupReqInput",
    "DestroyWeightsUpdateGroupReqInput",
    "UpdateWeightsFromDistributedReqInput",
    "UpdateWeightVersionReqInput",
    "BeginWeightUpdateReqInput",
    "EndWeightUpdateReqInput",
    "CheckWeightsReqInput",
)


def record(wheel: Path) -> dict[str, Any]:
    """All facts of the wheel unpacked at ``wheel``."""
    package = wheel / "sglang"
    structs = _classes(package / "srt/managers/io_struct.py")
    http = _tree(package / "srt/entrypoints/http_server.py")
    gate = package / "api/v1/api_types.py"
    gates = _classes(gate) if gate.exists() else {}
    return {
        "version": next(wheel.glob("sglang-*.dist-info")).name.removeprefix("sglang-").removesuffix(".dist-info"),
        "routes": _routes(http),
        "requests": {name: _fields(structs[name], structs) for name in REQUESTS if name in structs},
        "sampling_params": _sampling(package / "srt/sampling/sampling_params.py"),
        "gate": {name: _fields(gates[name], gates) for name in ("GenerateRequest", "SamplingParams") if name in gates},
        "error_response": _fields(_classes(package / "srt/entrypoints/openai/protocol.py")["ErrorResponse"], {}),
        "model_info": _returned_keys(http, "model_info"),
        "checker_actions": _compared(package / "srt/utils/weight_checker.py", "handle", "action"),
        "flags": _flags(package / "srt"),
    }


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _classes(file: Path) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in _tree(file).body if isinstance(node, ast.ClassDef)}


def _value(node: ast.expr | None) -> Any:
    """A literal as it is, anything else as its source text."""
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _routes(tree: ast.Module) -> dict[str, list[str]]:
    """Path -> methods, of everything decorated with ``@app.<method>`` under a path that is written out."""
    routes: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        for call in getattr(node, "decorator_list", []):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args):
                continue
            path = _value(call.args[0])
            if ast.unparse(call.func.value) != "app" or not str(path).startswith("/"):
                continue
            listed = next((_value(keyword.value) for keyword in call.keywords if keyword.arg == "methods"), None)
            routes.setdefault(path, set()).update(listed or [call.func.attr.upper()])
    return {path: sorted(methods) for path, methods in sorted(routes.items())}


def _fields(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> dict[str, Any]:
    """Name -> type, default and whether it is required; those of base classes in the same file first."""
    fields: dict[str, Any] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in known:
            fields |= _fields(known[base.id], known)
    for item in node.body:
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
            continue
        kind, default, required = item.annotation, item.value, item.value is None
        if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Annotated":
            assert isinstance(kind.slice, ast.Tuple)
            kind = kind.slice.elts[0]
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
            keywords = {keyword.arg: keyword.value for keyword in default.keywords}
            default, required = keywords.get("default"), not keywords.keys() & {"default", "default_factory"}
        fields[item.target.id] = {"type": ast.unparse(kind), "default": _value(default), "required": required}
    return fields


def _sampling(file: Path) -> dict[str, Any]:
    """From the constructor where there is one (0.5.10), else from the fields; a leading constant is resolved."""
    tree, node = _tree(file), _classes(file)["SamplingParams"]
    constants = _constants(tree)
    init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    if init is None:
        fields = _fields(node, {})
    else:
        names = init.args.args[1:]
        fields = {
            argument.arg: {"type": ast.unparse(argument.annotation), "default": _value(default), "required": False}
            for argument, default in zip(names, init.args.defaults, strict=True)
            if argument.annotation is not None
        }
    return {name: {**field, "default": constants.get(field["default"], field["default"])} for name, field in fields.items()}


def _constants(tree: ast.Module) -> dict[Any, Any]:
    """Module-level names bound to a literal, or to a shift of two (``1 << 30``)."""
    constants: dict[Any, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.LShift):
                constants[node.targets[0].id] = _value(value.left) << _value(value.right)
            elif isinstance(value, ast.List | ast.Tuple | ast.Constant):
                constants[node.targets[0].id] = _value(value)
    return constants


def _returned_keys(tree: ast.Module, function: str) -> list[str]:
    """The literal keys of the dictionaries in a function."""
    node = next(node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef) and node.name == function)
    keys = (_value(key) for found in ast.walk(node) if isinstance(found, ast.Dict) for key in found.keys)
    return sorted({key for key in keys if isinstance(key, str)})


def _compared(file: Path, function: str, name: str) -> list[str]:
    """The strings that ``name`` is compared with in a function."""
    found: list[str] = []
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            for comparison in ast.walk(node):
                if isinstance(comparison, ast.Compare) and ast.unparse(comparison.left) == name:
                    found += [_value(right) for right in comparison.comparators]
    return sorted(set(found))


def _flags(srt: Path) -> dict[str, Any]:
    """Flag -> type, choices, action: of ``add_argument`` calls and, in newer versions, of annotated fields."""
    constants: dict[Any, Any] = {}
    for file in (srt / "server_args.py", srt / "arg_groups/choices.py"):
        if file.exists():
            constants |= _constants(_tree(file))
    flags: dict[str, Any] = {}
    for call in ast.walk(_tree(srt / "server_args.py")):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            _add_flag(flags, [_value(name) for name in call.args], keywords, constants)
    for file in sorted((srt / "arg_groups/fields").glob("*.py")):
        for item in ast.walk(_tree(file)):
            if isinstance(item, ast.AnnAssign) and isinstance(item.annotation, ast.Subscript):
                for names, keywords in _annotated_flag(item):
                    _add_flag(flags, names, keywords, constants)
    return dict(sorted(flags.items()))


def _annotated_flag(item: ast.AnnAssign) -> Iterator[tuple[list[str], dict[str | None, ast.expr]]]:
    """The flag of a field ``name: A[type, "help" or Arg(...)]``; fields marked no_cli have none."""
    annotation = item.annotation
    assert isinstance(annotation, ast.Subscript)
    if ast.unparse(annotation.value) != "A" or not isinstance(annotation.slice, ast.Tuple):
        return
    kind, *metadata = annotation.slice.elts
    arguments = next((node for node in metadata if isinstance(node, ast.Call) and ast.unparse(node.func) == "Arg"), None)
    keywords: dict[str | None, ast.expr] = {}
    if arguments is not None:
        keywords = {keyword.arg: keyword.value for keyword in arguments.keywords}
    elif not isinstance(metadata[0], ast.Constant | ast.JoinedStr | ast.BinOp):
        return
    if _value(keywords.get("no_cli")):
        return
    name = ast.unparse(item.target)
    names = [_value(keywords.get("cli_name")) or "--" + name.replace("_", "-"), *(_value(keywords.get("aliases")) or [])]
    inner = (
        ast.unparse(kind).removeprefix("Optional[").removesuffix("]") if "Optional[" in ast.unparse(kind) else ast.unparse(kind)
    )
    if inner == "bool" and "action" not in keywords:
        keywords["action"] = ast.Constant("store_true")
    if inner.startswith("Literal[") and "choices" not in keywords:
        keywords["choices"] = ast.parse(f"[{inner.removeprefix('Literal[').removesuffix(']')}]", mode="eval").body
    if inner.startswith("List[") and "nargs" not in keywords and "type_parser" not in keywords:
        keywords["nargs"] = ast.Constant("+")
    if "type_parser" in keywords:
        keywords["type"] = keywords["type_parser"]
    elif inner in ("int", "float", "str"):
        keywords["type"] = ast.Name(inner)
    yield names, keywords


def _add_flag(flags: dict[str, Any], names: list[str], keywords: dict[str | None, ast.expr], constants: dict[Any, Any]) -> None:
    choices = _value(keywords.get("choices"))
    entry = {
        "type": None if "type" not in keywords else ast.unparse(keywords["type"]),
        "choices": constants.get(choices) if isinstance(choices, str) else choices,
        "action": _value(keywords.get("action")),
        "nargs": _value(keywords.get("nargs")),
    }
    for name in names:
        flags[name] = entry


def main() -> None:
    """Command line: the unpacked wheel and the file to write."""
    wheel, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.write_text(json.dumps(record(wheel), indent=1) + "\n")
    sys.stdout.write(f"{target}: {target.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
