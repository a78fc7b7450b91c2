"""This project's code on every host: its wheel, unpacked under a name that is a digest of what is in it.

No host needs a Python of its own for it, and none depends on a shared disk. Containers find it by PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import structlog

from openclaw_core.cluster.copies.pipes import script_on
from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.docker.errors import engine_errors
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, Hosts, on_each
from openclaw_core.cluster.specs import CODE, RUN_LABEL, host_path

log = structlog.get_logger(__name__)

CHECKOUT = Path(__file__).parents[3]
WHEELS = "openclaw_rl-*.whl"
MARKER = ".complete"
KEPT = 3
DIGEST_CHARACTERS = 16
BUILD_DEADLINE_S = 600


def build_wheel(into: Path, checkout: Path = CHECKOUT) -> Path:
    """Build the wheel from a checkout of the project into a directory; older ones there are removed.

    Raises:
        ClusterError: this is no checkout, or pip failed; its words are in the message.
    """
    if not (checkout / "pyproject.toml").is_file():
        raise ClusterError(f"{checkout} is no checkout of the project (no pyproject.toml); name a wheel that has been built")
    into.mkdir(parents=True, exist_ok=True)
    for old in into.glob(WHEELS):
        old.unlink()
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*line, "--wheel-dir", str(into), str(checkout)],
            capture_output=True,
            text=True,
            timeout=BUILD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"pip has not built the wheel of {checkout} within {BUILD_DEADLINE_S} s") from None
    wheels = list(into.glob(WHEELS))
    if done.returncode or len(wheels) != 1:
        raise ClusterError(f"pip could not build the wheel of {checkout}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return wheels[0]


@contextlib.contextmanager
def built_wheel(wheel: Path | None = None, checkout: Path = CHECKOUT) -> Iterator[Path]:
    """The given wheel, or one that is built from the checkout and is gone after the block. Raises ClusterError."""
    if wheel is not None:
        if not wheel.is_file():
            raise ClusterError(f"{wheel} does not exist; build it with make image-context, or name none to have one built")
        yield wheel
        return
    with tempfile.TemporaryDirectory(prefix="openclaw-wheel-") as folder:
        yield build_wheel(Path(folder), checkout)


def code_digest(wheel: Path) -> str:
    """Of the wheel's files by name and content, so that the same sources give the same digest. Raises ClusterError."""
    return _digest({name: hashlib.sha256(data).hexdigest() for name, data, _ in _files(wheel)})


def push_code(hosts: Hosts, wheel: Path, tell: Callable[[str], None]) -> str:
    """Unpack the wheel on every host, below its work_root. Skipped where it is there whole; others' older ones are removed.

    The newest ``KEPT`` stay, and those that containers there run. A pushed directory counts as new.

    Returns: its digest, the name of the directory below code/.

    Raises:
        ClusterError: the wheel cannot be read, or a host failed; every failing host is in the message.
    """
    digest = code_digest(wheel)
    archive = _archive(wheel)

    def push(host: Host) -> str:
        there = digest_on(host, digest)
        if there == digest:
            host.run("touch", str(code_path(host, digest)))
            said = "is there already"
        else:
            _unpack(host, digest, archive)
            said = "is there" if there is None else "was changed there and is there again"
        _remove_older(host)
        return f"{host.name}: code {digest} {said}"

    for line in on_each(hosts.all, push):
        tell(line)
    return digest


def digest_on(host: Host, code: str) -> str | None:
    """The digest of what is on the host now, read from its files; None where that code is not there, or not whole.

    Other than ``code`` where a file was changed, added or removed. What Python compiles to there does not count.

    Raises:
        HostError: the host cannot be reached, or a file not be read.
    """
    path = code_path(host, code)
    script = (
        f'[ -f "$1/{MARKER}" ] || exit 0; cd "$1" && '
        f"find . -type f ! -path '*/__pycache__/*' ! -path './{MARKER}' -printf '%P\\0' | xargs -0r sha256sum -z --; echo end"
    )
    said = script_on(host, f"{path} cannot be read", script, str(path))
    if not said:
        return None
    *lines, _end = said.split("\0")
    return _digest({line[66:]: line[:64] for line in lines})


def code_path(host: Host, code: str) -> PurePosixPath:
    """Where it is on the host itself."""
    return host_path(host.config, CODE / code)


def _files(wheel: Path) -> Iterator[tuple[str, bytes, bool]]:
    """Name, content, and whether it may be executed."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
                if entry.is_dir():
                    continue
                if ".data" in PurePosixPath(entry.filename).parts[0]:
                    raise ClusterError(f"{wheel} holds {entry.filename}, which only pip would know where to put")
                yield entry.filename, archive.read(entry), bool(entry.external_attr >> 16 & 0o100)
    except (OSError, zipfile.BadZipFile) as error:
        raise ClusterError(f"{wheel} cannot be read as a wheel: {error}; build it again") from error


def _digest(digests: Mapping[str, str]) -> str:
    # RECORD lists the others, and its order is the builder's own.
    lines = (f"{digests[name]}  {name}\n" for name in sorted(digests) if not name.endswith(".dist-info/RECORD"))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:DIGEST_CHARACTERS]


def _archive(wheel: Path) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data, executable in _files(wheel):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if executable else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def _unpack(host: Host, digest: str, archive: bytes) -> None:
    script = (
        'umask 022; rm -rf "$1.part" && mkdir -p "$1.part" && tar --no-same-owner -xf - -C "$1.part" && '
        f'rm -rf "$1" && mv "$1.part" "$1" && touch "$1/{MARKER}"'
    )
    path = str(code_path(host, digest))
    script_on(host, f"code cannot be unpacked at {path}", script, path, input=archive)
    log.info("code_pushed", host=host.name, code=digest)


def _remove_older(host: Host) -> None:
    """All but the newest ``KEPT`` and those that a container on the host has, of whichever run, alive or dead."""
    folder = str(code_path(host, "x").parent)
    names = "?" * DIGEST_CHARACTERS
    older = script_on(host, "older code cannot be listed", f'cd "$1" && ls -1td {names} | tail -n +{KEPT + 1}', folder).split()
    if not older:
        return
    used = _in_use(host)
    unused = [name for name in older if name not in used]
    if unused:
        script_on(host, "older code cannot be removed", 'cd "$1" && shift && rm -rf -- "$@"', folder, *unused)


def _in_use(host: Host) -> set[str]:
    """Digests that the environment of a run's container on the host names."""
    name = re.compile(rf"{CODE}/([0-9a-f]{{{DIGEST_CHARACTERS}}})")
    with Engine(host) as engine, engine_errors(host.name, "its containers cannot be listed"):
        containers = engine.client.containers.list(all=True, filters={"label": RUN_LABEL}, ignore_removed=True)
    return {digest for each in containers for digest in name.findall(" ".join(each.attrs["Config"]["Env"] or ()))}
