"""The build context of the image that simulated hosts run: busybox and bash of this machine, from nowhere else."""

from __future__ import annotations

import shutil
from pathlib import Path

from openclaw_core.cluster.errors import ClusterError

SIM_IMAGE = "openclaw-sim:1"
"""Name and tag."""
DOCKERFILE = Path(__file__).parents[3] / "image/sim/Dockerfile"
BUSYBOX, BASH = Path("/bin/busybox"), Path("/bin/bash")


def sim_build_context(into: Path) -> Path:
    """Dockerfile, busybox and bash in ``into``, which is made. Returns it.

    Raises:
        ClusterError: a file is missing, or busybox needs shared libraries, which an image from scratch does not have.
    """
    if not DOCKERFILE.is_file():
        raise ClusterError(f"{DOCKERFILE} does not exist: the simulation's image is built from a checkout of the repository")
    for program, package in ((BUSYBOX, "busybox-static"), (BASH, "bash")):
        if not program.is_file():
            raise ClusterError(f"{program} does not exist; apt-get install {package}")
    if needs_interpreter(BUSYBOX):
        raise ClusterError(f"{BUSYBOX} needs shared libraries, which the image does not have; apt-get install busybox-static")
    into.mkdir(parents=True, exist_ok=True)
    for file in (DOCKERFILE, BUSYBOX, BASH):
        shutil.copy2(file.resolve(), into / file.name)
    return into


def needs_interpreter(program: Path) -> bool:
    """Whether an ELF program is linked dynamically: it then names its loader among its program headers."""
    data = program.read_bytes()
    if data[:4] != b"\x7fELF" or data[4] != 2:
        raise ClusterError(f"{program} is not a 64-bit ELF program")
    order = "little" if data[5] == 1 else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], order)

    table, entry, count = number(32, 8), number(54, 2), number(56, 2)
    interpreter = 3  # PT_INTERP
    return any(number(table + index * entry, 4) == interpreter for index in range(count))
