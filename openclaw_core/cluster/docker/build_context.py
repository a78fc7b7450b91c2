"""What an image is built from: the context as one archive, and a digest of what is in it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tarfile
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import IO

from openclaw_core.cluster.copies.code import WHEELS, code_digest
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.config.cluster import BuildConfig

CONTEXT_LABEL = "openclaw.context"
WHEEL = f"image/wheels/{WHEELS}"
CHUNK = 1 << 20


@contextlib.contextmanager
def packed_context(build: BuildConfig) -> Iterator[tuple[IO[bytes], str]]:
    """The context as a tar file, .dockerignore respected, and its digest. Raises ClusterError.

    The digest is over names, kinds, modes and content of all that is sent, the Dockerfile's place and the build arguments: not
    over times and owners, which differ between two checkouts of the same commit.
    """
    from docker.utils.build import tar

    context = build.context.absolute()
    if not (context / build.dockerfile).is_file():
        raise ClusterError(f"there is no {context / build.dockerfile}; set cluster.build.context and cluster.build.dockerfile")
    ignore = context / ".dockerignore"
    lines = [line.strip() for line in ignore.read_text().splitlines()] if ignore.is_file() else []
    patterns = [line for line in lines if line and not line.startswith("#")]
    with tempfile.TemporaryFile() as stream:
        try:
            tar(context, exclude=patterns, dockerfile=(build.dockerfile, None), fileobj=stream)
        except OSError as error:
            raise ClusterError(f"the build context {context} cannot be packed: {error}") from error
        digest = _digest(stream, build)
        stream.seek(0)
        yield stream, digest


def described_by_wheel(build: BuildConfig) -> dict[str, str]:
    """Build arguments for labels that say what code is in the image; none where the context has not exactly one wheel of ours.

    Raises ClusterError where the wheel cannot be read.
    """
    wheels = list(build.context.glob(WHEEL))
    if len(wheels) != 1:
        return {}
    return {"VERSION": wheels[0].name.split("-")[1], "CODE_DIGEST": code_digest(wheels[0])}


def _digest(stream: IO[bytes], build: BuildConfig) -> str:
    found = hashlib.sha256(json.dumps([build.dockerfile, build.args], sort_keys=True).encode())
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for member in sorted(archive, key=lambda member: member.name):
            entry = [member.name, member.type.decode(), member.mode, member.linkname, member.size]
            found.update(json.dumps(entry).encode())
            if (content := archive.extractfile(member) if member.isreg() else None) is not None:
                for chunk in iter(partial(content.read, CHUNK), b""):
                    found.update(chunk)
    return found.hexdigest()
