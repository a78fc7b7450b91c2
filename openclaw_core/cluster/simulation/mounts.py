"""What containers of simulated hosts use of this machine: the interpreter and the installed packages, read-only.

The image (image.py) has a shell and no more. This project's own code is not among the mounts: each host has it in
its own folder, as it has on real ones.
"""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath

from openclaw_core.config.cluster import MountConfig

LIBRARIES = (Path("/usr/lib"), Path("/usr/lib64"))
"""The C library, its loader and what packages are linked against; the image's /lib and /lib64 lead there."""


def simulated_python() -> str:
    """The interpreter inside such a container: that of this process, with the packages that it has."""
    return str(Path(sys.prefix) / "bin/python")


def simulated_mounts() -> tuple[MountConfig, ...]:
    """For ``cluster.mounts``: each at the same place as on this machine, since an environment holds absolute paths."""
    places = [path for path in (*LIBRARIES, Path(sys.base_prefix), Path(sys.prefix)) if path.is_dir()]
    # An interpreter of the system is in /usr/bin, where the image has its own programs: then it alone.
    places.append(Path(simulated_python()).resolve())
    kept = [path for path in dict.fromkeys(places) if path != Path("/usr") and not _below_another(path, places)]
    return tuple(MountConfig(source=PurePosixPath(path), target=PurePosixPath(path)) for path in kept)


def _below_another(path: Path, places: list[Path]) -> bool:
    return any(path != other and other != Path("/usr") and path.is_relative_to(other) for other in places)
