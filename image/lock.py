"""Make image/requirements.lock: every Python package of the stack, by version and sha256, resolved for Linux on arm64.

    python image/lock.py image/wheels/openclaw_rl-*.whl

It runs anywhere, downloads no package that has separate metadata, and installs nothing. Resolve anew when requirements.in or
the project's own dependencies change.
"""

from __future__ import annotations

import json
import platform
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# glibc of Ubuntu 22.04 is 2.35.
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in range(35, 16, -1)] + ["manylinux2014_aarch64", "linux_aarch64"]
# Its metadata asks for CUDA; requirements.in has what it needs here.
WITHOUT_DEPENDENCIES = ("sglang",)


def resolve(requirements: list[str], options: list[str]) -> list[dict[str, Any]]:
    """What pip would install for these: the ``install`` part of its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        arguments = [
            *("pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--target", folder, "--report", str(report)),
            *("--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.11"),
            *(option for abi in ("cp311", "abi3", "none") for option in ("--abi", abi)),
            *(option for name in PLATFORMS for option in ("--platform", name)),
            *options,
            *requirements,
        ]
        _run_pip(arguments)
        return json.loads(report.read_text(encoding="utf-8"))["install"]


def _run_pip(arguments: list[str]) -> None:
    # pip takes tags for another machine, but reads markers (platform_machine) with the eyes of this one.
    saved_machine, saved_arguments = platform.machine, sys.argv
    platform.machine, sys.argv = (lambda: "aarch64"), arguments
    try:
        runpy.run_module("pip", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        platform.machine, sys.argv = saved_machine, saved_arguments


def lock_lines(items: list[dict[str, Any]]) -> list[str]:
    """``name==version`` with the sha256 of the file that was chosen, sorted by name. The place it came from is left out."""
    entries: dict[str, str] = {}
    for item in items:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        if name != "openclaw-rl":
            sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
            entries[name.lower().replace("_", "-")] = f"{name}=={version} \\\n    --hash=sha256:{sha256}"
    return [entries[name] for name in sorted(entries)]


def main(wheel: Path) -> None:
    lines = (HERE / "requirements.in").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    alone = [line for line in wanted if line.split("==")[0] in WITHOUT_DEPENDENCIES]
    rest = [line for line in wanted if line not in alone]
    items = resolve([*rest, f"openclaw-rl[npu] @ {wheel.resolve().as_uri()}"], [])
    items += resolve(alone, ["--no-deps"])
    head = "# Made by image/lock.py for Linux on arm64; not edited by hand.\n"
    (HERE / "requirements.lock").write_text(head + "\n".join(lock_lines(items)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
