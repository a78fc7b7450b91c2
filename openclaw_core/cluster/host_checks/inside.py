"""What a container of the image finds: run there by its text (``python -c``), so standard library only, no import of ours.

Prints one line, ``MARK`` and JSON. Where a package would be imported from is asked of the import system without importing it:
SGLang cannot be imported without its device, and megatron only after torch_npu.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

MARK = "openclaw-inside "
MODULES = {"openclaw_core": "openclaw-rl", "megatron.core": "megatron-core", "mindspeed": "mindspeed", "sglang": "sglang"}
"""Module, and the package that it comes with."""
PACKAGES = ("torch", "torch_npu", "sgl-kernel-npu")
CANN_FILES = (
    f"{platform.machine()}-linux/ascend_toolkit_install.info",
    "share/info/runtime/version.info",
    "runtime/version.info",
    "version.cfg",
)
"""Below the toolkit's folder; which of them there are changes with its version."""
CANN_VERSION = re.compile(r"(?:^|\s)[Vv]ersion=\s*(\S+)|running_version=\[([^:\]]+)")


def module(name: str, package: str) -> dict[str, str | None]:
    """Path of its folder, version and commit; None each where there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec else []
    path = Path(places[0]).resolve() if places else None
    return {"path": str(path) if path else None, "version": version(package), "commit": commit(path) if path else None}


def version(package: str) -> str | None:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit(path: Path) -> str | None:
    """What the checkout around a folder is at; None for an installed package."""
    for folder in () if "site-packages" in path.parts else path.parents:
        head = folder / ".git" / "HEAD"
        if head.is_file():
            text = head.read_text().strip()
            reference = folder / ".git" / text.removeprefix("ref: ")
            if not text.startswith("ref: "):
                return text
            return reference.read_text().strip() if reference.is_file() else None
    return None


def cann() -> str | None:
    """Version of the CANN toolkit; None where none of its files says it."""
    named = (os.environ.get(name) for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"))
    for folder in (*filter(None, named), "/usr/local/Ascend/ascend-toolkit/latest"):
        for name in CANN_FILES:
            file = Path(folder) / name
            found = CANN_VERSION.search(file.read_text(errors="replace")) if file.is_file() else None
            if found:
                return found[1] or found[2]
    return None


def devices() -> tuple[int | None, str | None]:
    """NPUs that torch_npu counts, or why they cannot be counted."""
    try:
        import torch  # loads torch_npu by itself, where that is installed

        return torch.npu.device_count(), None  # pyright: ignore[reportAttributeAccessIssue]
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        return None, f"{type(error).__name__}: {error}"


def look(count: bool) -> dict[str, Any]:
    """All of it. ``count``: whether NPUs are counted, which takes seconds."""
    counted, problem = devices() if count else (None, None)
    return {
        "modules": {name: module(name, package) for name, package in MODULES.items()},
        "packages": {name: version(name) for name in PACKAGES},
        "cann": cann(),
        "devices": counted,
        "problem": problem,
    }


if __name__ == "__main__":
    sys.stdout.write(f"\n{MARK}{json.dumps(look('--devices' in sys.argv))}\n")
