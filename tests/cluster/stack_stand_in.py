"""A base for the project's Dockerfile in place of the stack of image/stack.Dockerfile, made of this machine's files.

Real in it: shell, Python and pip, at the place where CANN's image has its Python. Stand-in: of the packages that
image/requirements.lock and image/pins.txt pin there is the metadata alone, so that pip, check_pins.py and the doctor find the
stack's versions, and nothing can be imported. The packages that `openclaw-rl` imports for its help and its doctor are left out:
they come with the build context, as real wheels at the lock's versions.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.image_files import PROJECT, ROOT, defaults, pins

IMPORTED = (
    *("annotated-doc", "annotated-types", "anyio", "certifi", "distro", "h11", "httpcore", "httpx", "idna", "jiter"),
    *("markdown-it-py", "mdurl", "openai", "packaging", "psutil", "pydantic", "pydantic-core", "pygments", "pyyaml", "rich"),
    *("shellingham", "sniffio", "structlog", "tqdm", "typer", "typing-extensions", "typing-inspection"),
)
"""By `openclaw-rl --help` and `openclaw-rl doctor`. Where one is missing the build's last step fails and names it."""
WHEELS = ROOT / ".state/image-wheels"
UNUSED = (
    *("__pycache__", "_tkinter*", "config-*", "ensurepip", "idlelib", "lib2to3", "site-packages"),
    *("test", "tests", "tkinter", "turtledemo"),
)
"""Of Python's library: 200 MB that nothing here needs. The engines of simulated hosts copy a whole image for every step."""
LIBRARIES = ("libdl.so.2", "libgcc_s.so.1", "libpthread.so.0", "librt.so.1", "libstdc++.so.6", "libutil.so.1")
"""Wheels expect them of every system (PEP 600)."""


def stand_in_context(into: Path, base: str) -> Path:
    """The build context of the stand-in, on an image that has busybox and bash. Returns ``into``, which is made."""
    root = into / "root"
    prefix = root / PurePosixPath(defaults(PROJECT)["PYTHON"]).parents[1].relative_to("/")
    library = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*UNUSED))
    program = prefix / "bin/python3"
    program.parent.mkdir()
    shutil.copy2(Path(sys.executable).resolve(), program)
    _copy_pip(library / "site-packages")
    _write_metadata(library / "site-packages")
    _copy_libraries(root, Path("/bin/bash"), program, *library.glob("lib-dynload/*.so"))
    (root / "opt/stack").mkdir(parents=True)  # by which the Dockerfile knows the stack
    # Compiled files would double the number of files that each further step copies.
    (into / "Dockerfile").write_text(f"FROM {base}\nENV PIP_NO_COMPILE=1\nCOPY root /\n")
    return into


def imported_wheels() -> list[Path]:
    """Of IMPORTED, at the lock's versions, for this machine. Downloaded once."""
    lock = pins("requirements.lock")
    wanted = [f"{name}=={lock[name]}" for name in IMPORTED]
    marker = WHEELS / "complete"
    if not marker.is_file() or marker.read_text().split() != wanted:
        shutil.rmtree(WHEELS, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(WHEELS), *wanted], check=True, timeout=300)
        marker.write_text("\n".join(wanted))
    return sorted(WHEELS.glob("*.whl"))


def _copy_pip(packages: Path) -> None:
    for file in importlib.metadata.distribution("pip").files or []:
        if ".." not in file.parts and file.suffix != ".pyc":
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), packages / file)


def _write_metadata(packages: Path) -> None:
    for name, version in (pins("requirements.lock") | pins("pins.txt")).items():
        if name not in IMPORTED:
            folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _copy_libraries(root: Path, *programs: Path) -> None:
    """Those that the programs are linked with, and LIBRARIES. All beside the C library, where the loader looks."""
    linked = dict(_linked(programs))
    (loader,) = (path for name, path in linked.items() if name.startswith("/"))
    place = linked["libc.so.6"].parent
    wanted = {name: path for name, path in linked.items() if not name.startswith("/")}
    wanted |= {name: place / name for name in LIBRARIES}
    for path, to in [(loader, loader), *((path, place / name) for name, path in wanted.items())]:
        # /lib and /lib64 are links into /usr, here and in the image.
        copy = root / (to if to.is_relative_to("/usr") else "/usr" / to.relative_to("/")).relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)


def _linked(programs: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    """Name and place of each shared library; the loader's name is its place."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True, timeout=60).stdout
    for line in said.splitlines():
        name, _, rest = line.strip().partition(" => ")
        if rest.startswith("/"):
            yield name, Path(rest.split()[0])
        elif name.startswith("/") and " (0x" in name:
            yield name.split()[0], Path(name.split()[0])
