"""An image as one compressed file on a host, and back.

Docker's own program on the host packs and loads it, through zstd, where the host has both: then the image, 20 to 30 GB of it,
crosses the network as the compressed file only. Docker's interface over SSH needs no program there, at the price that all of
it passes through this machine unpacked, to it and back, on both sides. That is the way for a host that lacks one of the two,
and it is said. Either way the file is whole on a disk before it travels, which is what makes the copy resumable.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath
from typing import Any

from openclaw_core.cluster.copies.pipes import script_on
from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.docker.errors import engine_errors
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, HostError

DEADLINE_S = 2 * 3600
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Archive:
    """A compressed image on a host's disk."""

    path: PurePosixPath
    sha256: str


def make_archive(
    engine: Engine, reference: str, image_id: str, tell: Callable[[str], None], direct: bool | None = None
) -> Archive:
    """The image's archive below work_root/images of its host; one that is there is used again, those of others are removed.

    Args:
        direct: By Docker's program on the host; None: where the host has it and zstd.

    Raises:
        HostError: the disk is full, or a program failed. What it had written is removed.
    """
    host = engine.host
    path = host.work_root / "images" / f"{image_id.removeprefix('sha256:')}.tar.zst"
    known = script_on(host, f"{path} cannot be read", 'cat "$1.sha256" 2>&- || :', str(path)).strip()
    if known and host.run("test", "-f", str(path), check=False).code == 0:
        tell(f"{host.name}: its archive is there already, {path}")
        return Archive(path, known)
    others = 'mkdir -p "$1" && find "$1" -maxdepth 1 -name "*.tar.zst*" ! -name "*.part" -delete'
    script_on(host, f"{path.parent} cannot be tidied", others, str(path.parent))
    try:
        if _is_direct(host, tell) if direct is None else direct:
            _run_piped(
                host,
                f"image {reference} cannot be saved",
                f'{_docker(host)} save -- "$2"',
                'zstd -q -T0 -f -o "$1"',
                f"{path}.new",
                reference,
            )
        else:
            _save_through_here(engine, f"{path}.new", reference)
        finish = 'mv -f "$1.new" "$1" && d=$(sha256sum < "$1") && printf %s "${d%% *}" > "$1.sha256" && cat "$1.sha256"'
        digest = script_on(host, f"{path} cannot be completed", finish, str(path), timeout_s=DEADLINE_S)
    except BaseException:
        with contextlib.suppress(HostError):
            host.run("rm", "-f", f"{path}.new")
        raise
    return Archive(path, digest)


def load_archive(engine: Engine, path: PurePath, tell: Callable[[str], None], direct: bool | None = None) -> None:
    """Load an archive that is on the engine's host. Raises HostError where a program or the engine failed."""
    host = engine.host
    if _is_direct(host, tell) if direct is None else direct:
        _run_piped(host, f"{path} cannot be loaded", 'zstd -dqc -- "$1"', f"{_docker(host)} load -q", str(path), "")
    else:
        _load_through_here(engine, path)


def _is_direct(host: Host, tell: Callable[[str], None]) -> bool:
    script = 'for name in docker zstd; do command -v "$name" > /dev/null || echo "$name"; done'
    if lacking := script_on(host, "its programs cannot be looked up", script).split():
        tell(f"{host.name}: no {' and no '.join(lacking)} there, so the image passes through this machine unpacked: slow")
    return not lacking


def _docker(host: Host) -> str:
    return f"docker -H {shlex.quote(f'unix://{host.config.docker_socket}')}"


def _run_piped(host: Host, doing: str, first: str, second: str, *arguments: str) -> None:
    """Two programs with a pipe between them. A shell tells only how the second ended, so the first leaves a mark."""
    script = f"""
failed=$(mktemp) || exit
{{ {first} || echo failed > "$failed"; }} | {second}
status=$?
[ -s "$failed" ] && status=1
rm -f "$failed"
exit "$status"
"""
    script_on(host, doing, script, *arguments, timeout_s=DEADLINE_S)


def _save_through_here(engine: Engine, path: str, reference: str) -> None:
    host = engine.host
    with _process(host.line("sh", "-c", 'cat > "$1"', "write", path), stdin=subprocess.PIPE) as writer:
        with _zstd("-T0", stdin=subprocess.PIPE, stdout=writer.stdin) as packer:
            _close(writer)  # the packer has it now: its end is the writer's end
            assert packer.stdin is not None
            with engine_errors(host.name, f"image {reference} cannot be saved"):
                for chunk in engine.client.api.get_image(reference, CHUNK):
                    packer.stdin.write(chunk)
            _close(packer)
            _end(host, packer, "packing the image here")
        _end(host, writer, f"writing {path}")


def _load_through_here(engine: Engine, path: PurePath) -> None:
    host = engine.host
    with _process(host.line("cat", "--", str(path)), stdout=subprocess.PIPE) as reader:
        with _zstd("-d", stdin=reader.stdout, stdout=subprocess.PIPE) as unpacker:
            stream = unpacker.stdout
            assert stream is not None
            with engine_errors(host.name, f"{path} cannot be loaded"):
                for answer in engine.client.api.load_image(iter(lambda: stream.read(CHUNK), b"")):
                    if "error" in answer:
                        raise HostError(host.name, f"{path} cannot be loaded: {answer['error']}")
            _end(host, unpacker, "unpacking the image here")
        _end(host, reader, f"reading {path}")


@contextlib.contextmanager
def _process(line: list[str], **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program that does not outlive the block."""
    process = subprocess.Popen(line, stdin=streams.get("stdin", subprocess.DEVNULL), stdout=streams.get("stdout"))
    try:
        yield process
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        process.wait()


def _zstd(option: str, **streams: Any) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    if shutil.which("zstd") is None:
        raise ClusterError(
            "there is no program zstd on this machine; install it here, or with docker's own program on the host"
        )
    return _process(["zstd", "-q", "-c", option], **streams)


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def _end(host: Host, process: subprocess.Popen[bytes], doing: str) -> None:
    if code := process.wait(timeout=DEADLINE_S):
        raise HostError(host.name, f"{doing} ended with status {code}; its words are on standard error")
