"""The image on every host: built on one of them, then carried to the others."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import structlog

from openclaw_core.cluster.copies.pipes import script_on
from openclaw_core.cluster.copies.transfer import copy_file
from openclaw_core.cluster.docker.archives import DEADLINE_S, Archive, load_archive, make_archive
from openclaw_core.cluster.docker.build_context import CONTEXT_LABEL, described_by_wheel, packed_context
from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.docker.errors import engine_errors, until
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, HostError, Hosts, on_each
from openclaw_core.cluster.specs import proxy_environment
from openclaw_core.config.cluster import BuildConfig
from openclaw_core.config.schema import RunConfig

log = structlog.get_logger(__name__)

LAST_LINES = 25
TELL_EVERY_S = 5
GB = 1_000_000_000
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""The engine makes a step's standard error red."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What an engine calls its machine, and an image the same one."""


class BuildFailed(HostError):
    """A step of the Dockerfile failed; the message has the step and its last lines."""


@dataclass(frozen=True, slots=True)
class Built:
    """The image on the host that builds."""

    reused: bool
    """An image of the same context, or one that nobody builds here, was there already."""
    image_id: str
    host: str


@dataclass(frozen=True, slots=True)
class Sent:
    """The image on another host."""

    host: str
    image_id: str
    skipped: bool
    """The same image was there already."""
    archive_bytes: int = 0
    sent_bytes: int = 0


def build_image(config: RunConfig, hosts: Hosts, tell: Callable[[str], None]) -> Built:
    """Build the image on the host of cluster.build, unless one of the same context is there; ``tell`` gets the builder's lines.

    The same: the context's files by name, mode and content, the Dockerfile among them, and the build arguments. Without
    cluster.build the first host that has the image is named.

    Raises:
        BuildFailed: a step failed, or the build was not over within build.deadline_s.
        ClusterError: the context is not there, no host has the image, or an engine cannot be reached.
    """
    build, reference = config.cluster.build, _reference(config)
    if build is None:
        host, image_id = _holder(config, hosts)
        return Built(True, image_id, host.name)
    host = _builder(build, hosts)
    with packed_context(build) as (context, digest), Engine(host) as engine:
        if (image_id := _same_context(engine, reference, digest)) is not None:
            tell(f"{host.name}: image {reference} of this context is there already, {image_id}")
            return Built(True, image_id, host.name)
        tell(f"{host.name}: building {reference}, context {digest[:12]}")
        arguments = {
            "fileobj": context,
            "custom_context": True,
            "dockerfile": build.dockerfile,
            "tag": reference,
            "rm": True,
            "forcerm": True,
            "buildargs": proxy_environment(config.cluster) | described_by_wheel(build) | build.args,
            "labels": {CONTEXT_LABEL: digest},
            "network_mode": build.network,
            "timeout": int(build.deadline_s),  # of silence: a step may compile for long without a word
            "decode": True,
        }
        _build(engine, arguments, build.deadline_s, tell)
        image = engine.image_id(reference)
    if image is None:
        raise BuildFailed(host.name, f"the builder ended without an error, and there is no image {reference}")
    log.info("image_built", host=host.name, image=reference, id=image[0])
    return Built(False, image[0], host.name)


def distribute_image(config: RunConfig, hosts: Hosts, tell: Callable[[str], None]) -> list[Sent]:
    """Bring the image to every other host, at once to all that lack it; ``tell`` gets the bytes. Results in the hosts' order.

    Its archive is made once, on the host that has the image, and stays there for hosts that come later; on the others it is
    removed when it is loaded. A copy that was interrupted goes on where it stopped, also by calling this again.

    Raises:
        ClusterError: no host has the image, a host is of another architecture or has no room, or is out of reach; every failing
            host is in the message.
    """
    reference = _reference(config)
    source, image_id = _holder(config, hosts)
    others = [host for host in hosts.all if host is not source]
    with Engine(source, timeout_s=DEADLINE_S) as engine:
        image = engine.image_id(reference)
        assert image is not None, "the holder has it"
        present = on_each(others, lambda host: _is_present(host, reference, image))
        if all(present):
            return [Sent(host.name, image_id, skipped=True) for host in others]
        tell(f"{source.name}: packing {reference}, {_gb(_size(engine, reference))} unpacked")
        archive = make_archive(engine, reference, image_id, tell)
    lock = threading.Lock()

    def told(line: str) -> None:
        with lock:
            tell(line)

    def send(host: Host) -> Sent:
        if present[others.index(host)]:
            told(f"{host.name}: image {reference} is there already, {image_id}")
            return Sent(host.name, image_id, skipped=True)
        return _send(source, archive, host, reference, image_id, told)

    return on_each(others, send)


def _reference(config: RunConfig) -> str:
    if config.cluster.image is None:
        raise ClusterError("cluster.image is not set; give the image's name and tag")
    return config.cluster.image


def _builder(build: BuildConfig, hosts: Hosts) -> Host:
    return hosts.named(build.host) if build.host is not None else hosts.all[0]


def _holder(config: RunConfig, hosts: Hosts) -> tuple[Host, str]:
    """The host that builds, else the first one that has the image, and the image's id. Raises ClusterError."""
    reference, build = _reference(config), config.cluster.build
    candidates = hosts.all if build is None else (_builder(build, hosts),)
    for host in candidates:
        with Engine(host) as engine:
            image = engine.image_id(reference)
        if image is not None:
            return host, image[0]
    where = ", ".join(host.name for host in candidates)
    advice = "run build-image" if build else "set cluster.build, or load the image on a host"
    raise ClusterError(f"there is no image {reference} on {where}; {advice}")


def _same_context(engine: Engine, reference: str, digest: str) -> str | None:
    if engine.image_id(reference) is None:
        return None
    with engine_errors(engine.host.name, f"image {reference} cannot be looked up"):
        image = engine.client.images.get(reference)
    return str(image.id) if image.labels.get(CONTEXT_LABEL) == digest else None


def _size(engine: Engine, reference: str) -> int:
    with engine_errors(engine.host.name, f"image {reference} cannot be looked up"):
        return int(engine.client.images.get(reference).attrs["Size"])


def _build(engine: Engine, arguments: dict[str, Any], deadline_s: float, tell: Callable[[str], None]) -> None:
    host, step = engine.host.name, "before the first step"
    last: deque[str] = deque(maxlen=LAST_LINES)

    def late() -> BuildFailed:
        return _failed(host, step, f"was not over within {deadline_s:g} s (cluster.build.deadline_s)", last)

    def answers() -> Iterator[dict[str, Any]]:
        with engine_errors(host, "the build was interrupted"):
            yield from engine.client.api.build(**arguments)

    for answer in until(answers(), time.monotonic() + deadline_s, late):
        if "error" in answer:
            raise _failed(host, step, f"failed: {answer['error']}", last)
        said = str(answer.get("stream") or answer.get("status") or "")
        for line in COLOUR.sub("", said).splitlines():
            if line.startswith("Step "):
                step = line
                last.clear()
            elif line:
                last.append(line)
            if line:
                tell(line)


def _failed(host: str, step: str, why: str, last: deque[str]) -> BuildFailed:
    return BuildFailed(host, "\n".join([f"building the image, {step}: {why}", *last]))


def _is_present(host: Host, reference: str, image: tuple[str, str]) -> bool:
    """Whether the very image is there; it then bears the reference. Raises HostError where it could not run."""
    image_id, architecture = image
    with Engine(host) as engine:
        with engine_errors(host.name, "the engine cannot be asked for its architecture"):
            machine = str(engine.client.info()["Architecture"])
        if ARCHITECTURES.get(machine, machine) != architecture:
            raise HostError(
                host.name,
                f"is {machine}, and image {reference} is for {architecture}; hosts of another architecture need an image of "
                "their own, built on one of them (cluster.build.host)",
            )
        if engine.image_id(image_id) is None:
            return False
        found = engine.image_id(reference)
        if found is None or found[0] != image_id:
            with engine_errors(host.name, f"image {image_id} cannot be tagged"):
                engine.client.images.get(image_id).tag(reference)
        return True


def _send(source: Host, archive: Archive, host: Host, reference: str, image_id: str, tell: Callable[[str], None]) -> Sent:
    # By the archive's own digest: what is left of another archive of the same image is no part of this one.
    to = host.work_root / "images" / f"{archive.sha256}.tar.zst"
    forgotten = 'mkdir -p "$1" && find "$1" -maxdepth 1 -name "*.tar.zst.part" -mmin +1440 -delete'
    script_on(host, f"{to.parent} cannot be tidied", forgotten, str(to.parent))
    copied = copy_file(source, archive.path, host, to, sha256=archive.sha256, progress=_progress(host.name, tell))
    tell(f"{host.name}: loading {reference}")
    with Engine(host, timeout_s=DEADLINE_S) as engine:
        load_archive(engine, to, tell)
        loaded = engine.image_id(reference)
    # Only now: where loading fails, as on a full disk, the next call finds it and sends nothing again.
    host.run("rm", "-f", str(to))
    if loaded is None or loaded[0] != image_id:
        raise HostError(
            host.name,
            f"{reference} was loaded, and is {loaded[0] if loaded else 'not there'} instead of {image_id}; do the engines keep "
            "images in the same way (docker info: containerd-snapshotter)? Set them up alike",
        )
    tell(f"{host.name}: {reference} is there, {image_id}")
    return Sent(host.name, image_id, skipped=False, archive_bytes=copied.size, sent_bytes=copied.sent)


def _progress(host: str, tell: Callable[[str], None]) -> Callable[[int, int], None]:
    """Tell every few seconds, and at the end."""
    next_at = 0.0

    def report(done: int, total: int) -> None:
        nonlocal next_at
        now = time.monotonic()
        if now >= next_at or done == total:
            next_at = now + TELL_EVERY_S
            tell(f"{host}: {_gb(done)} of {_gb(total)} copied")

    return report


def _gb(size: int) -> str:
    return f"{size / GB:.3f} GB"
