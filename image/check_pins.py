"""Compare installed Python packages with pinned ones; exit code 1 names every package that moved.

    check_pins.py [--complete] FILE...

FILE has lines ``name==version``, as a lock file or a requirements file has them. A package that is not installed is wrong
only with --complete, so that the check can follow every step of a build. Runs on the standard library alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
from pathlib import Path

PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")


def read_pins(text: str) -> dict[str, str]:
    """Normalised name to version. Comments, hashes and blank lines are passed over; any other line is an error."""
    pins: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "--hash")):
            continue
        found = PIN.match(stripped)
        if found is None:
            raise ValueError(f"not a pin, wanted is name==version: {stripped}")
        pins[normalised(found[1])] = found[2]
    return pins


def normalised(name: str) -> str:
    """The form in which names of packages are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def moved(pins: dict[str, str], installed: dict[str, str], complete: bool) -> list[str]:
    """A line for each package that is not as pinned. A local part (+cpu) counts only where the pin has one."""
    lines: list[str] = []
    for name, wanted in pins.items():
        version = installed.get(name)
        if version is None:
            if complete:
                lines.append(f"{name}: not installed, pinned is {wanted}")
        elif (version if "+" in wanted else version.partition("+")[0]) != wanted:
            lines.append(f"{name}: {version} is installed, pinned is {wanted}")
    return lines


def installed_versions() -> dict[str, str]:
    """Normalised name to version; of a package that is there twice, the one that is imported."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        versions.setdefault(normalised(distribution.metadata["Name"]), distribution.version)
    return versions


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--complete", action="store_true", help="a package that is not installed is wrong too")
    options = parser.parse_args(arguments)
    pins: dict[str, str] = {}
    for file in options.files:
        pins |= read_pins(file.read_text(encoding="utf-8"))
    wrong = moved(pins, installed_versions(), options.complete)
    sys.stdout.writelines(f"error: {line}\n" for line in wrong)
    if not wrong:
        sys.stdout.write(f"{len(pins)} pins hold\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
