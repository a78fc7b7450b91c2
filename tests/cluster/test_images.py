"""The image: built on one host over SSH, carried to the other."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.cluster.docker.archives import load_archive, make_archive
from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.docker.images import BuildFailed, Built, build_image, distribute_image
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, Hosts
from openclaw_core.config import RunConfig, load_config
from openclaw_core.config.cluster import BuildConfig, ClusterConfig

pytestmark = pytest.mark.cluster

REFERENCE = "openclaw-test:1"
MB = 1 << 20


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Of an image on the simulation's."""
    folder = tmp_path / "context"
    (folder / "sub").mkdir(parents=True)
    (folder / "Dockerfile").write_text(
        "FROM openclaw-sim:1\nARG WHAT=nothing\nCOPY sub /sub\nRUN echo building with $WHAT && ls -l /sub\n"
    )
    (folder / ".dockerignore").write_text("# of no use\n*.log\n")
    (folder / "sub" / "a b").write_text("a")
    (folder / "noise.log").write_text("1")
    return folder


@pytest.fixture
def config(cluster_config: ClusterConfig, context: Path) -> RunConfig:
    build = BuildConfig(context=context, network="none", deadline_s=120)
    return with_cluster(cluster_config, image=REFERENCE, build=build)


@pytest.fixture(autouse=True)
def no_image(hosts: Hosts, sim_image: str) -> Iterator[None]:
    """Each test begins and ends without it, and without archives."""

    def remove() -> None:
        for host in hosts:
            with Engine(host) as engine:
                if engine.image_id(REFERENCE) is not None:
                    engine.client.images.remove(REFERENCE, force=True)
            host.run("rm", "-rf", str(host.work_root / "images"))

    remove()
    yield
    remove()


def with_cluster(cluster: ClusterConfig, **changes: Any) -> RunConfig:
    return load_config("local-cpu").model_copy(update={"cluster": cluster.model_copy(update=changes)})


def ignore(_line: str) -> None:
    pass


def image_on(host: Host, reference: str = REFERENCE) -> str | None:
    with Engine(host) as engine:
        found = engine.image_id(reference)
    return found[0] if found else None


def archives(host: Host) -> list[Path]:
    folder = Path(host.work_root) / "images"
    return sorted(folder.iterdir()) if folder.exists() else []


def test_an_image_is_built_with_its_log_and_used_again_for_the_same_context(config: RunConfig, hosts: Hosts, context: Path):
    told: list[str] = []
    built = build_image(config, hosts, told.append)
    assert built == Built(False, image_on(hosts.all[0]) or "", "node-a")
    assert "building with nothing" in told
    assert any(line.startswith("Step 4/5") for line in told)
    assert image_on(hosts.all[1]) is None

    # What a checkout of the same commit differs in, and what is not sent, does not matter.
    os.utime(context / "sub" / "a b", (1, 1))
    (context / "noise.log").write_text("2")
    told.clear()
    assert build_image(config, hosts, told.append) == Built(True, built.image_id, "node-a")
    assert told == [f"node-a: image {REFERENCE} of this context is there already, {built.image_id}"]


def test_a_change_of_content_mode_or_arguments_is_built(config: RunConfig, hosts: Hosts, context: Path):
    file = context / "sub" / "a b"
    cluster = config.cluster
    assert cluster.build is not None
    other = with_cluster(cluster, build=cluster.build.model_copy(update={"args": {"WHAT": "this"}}))
    ids = [build_image(config, hosts, ignore).image_id]
    changes: tuple[Callable[[], object], ...] = (
        lambda: file.write_text("b"),
        lambda: file.chmod(0o755),
        lambda: file.rename(file.with_name("c")),
    )
    for change in changes:
        change()
        built = build_image(config, hosts, ignore)
        assert not built.reused
        ids.append(built.image_id)
    told: list[str] = []
    assert not build_image(other, hosts, told.append).reused
    assert "building with this" in told
    assert len(set(ids)) == len(ids)


def test_a_step_that_fails_is_shown_with_its_last_lines(config: RunConfig, hosts: Hosts, context: Path):
    with (context / "Dockerfile").open("a") as file:
        file.write("RUN echo about to fail; echo to standard error >&2; exit 7\n")
    with pytest.raises(BuildFailed) as error:
        build_image(config, hosts, ignore)
    message = str(error.value)
    assert message.startswith("host node-a: building the image, Step 5/6 : RUN echo about to fail")
    assert "returned a non-zero code: 7" in message
    assert "\nabout to fail" in message
    assert "\nto standard error" in message
    assert "building with nothing" not in message


def test_a_build_ends_at_its_deadline(config: RunConfig, hosts: Hosts, context: Path):
    with (context / "Dockerfile").open("a") as file:
        file.write("RUN echo long && sleep 15\n")
    assert config.cluster.build is not None
    hasty = with_cluster(config.cluster, build=config.cluster.build.model_copy(update={"deadline_s": 6}))
    with pytest.raises(BuildFailed, match=r"was not over within 6 s \(cluster\.build\.deadline_s\)"):
        build_image(hasty, hosts, ignore)


def test_a_context_or_a_host_that_is_not_there_is_named(config: RunConfig, hosts: Hosts, tmp_path: Path):
    nowhere = with_cluster(config.cluster, build=BuildConfig(context=tmp_path / "nowhere"))
    with pytest.raises(ClusterError, match=r"there is no .*nowhere/Dockerfile; set cluster\.build\.context"):
        build_image(nowhere, hosts, ignore)
    assert config.cluster.build is not None
    stranger = with_cluster(config.cluster, build=config.cluster.build.model_copy(update={"host": "node-z"}))
    with pytest.raises(ClusterError, match="no host 'node-z' in the cluster; there are: node-a, node-b"):
        build_image(stranger, hosts, ignore)


def test_an_image_arrives_with_its_id_and_is_not_sent_twice(config: RunConfig, hosts: Hosts):
    a, b = hosts.all
    with pytest.raises(ClusterError, match=rf"there is no image {REFERENCE} on node-a; run build-image"):
        distribute_image(config, hosts, ignore)
    built, told = build_image(config, hosts, ignore), []
    (sent,) = distribute_image(config, hosts, told.append)
    assert (sent.host, sent.image_id, sent.skipped) == ("node-b", built.image_id, False)
    assert sent.sent_bytes == sent.archive_bytes > MB
    assert image_on(b) == built.image_id
    assert f"node-b: {sent.archive_bytes / 1e9:.3f} GB of {sent.archive_bytes / 1e9:.3f} GB copied" in told
    name = built.image_id.removeprefix("sha256:")
    assert [path.name for path in archives(a)] == [f"{name}.tar.zst", f"{name}.tar.zst.sha256"]
    assert archives(b) == []

    (again,) = distribute_image(config, hosts, ignore)
    assert (again.skipped, again.sent_bytes) == (True, 0)
    with Engine(b) as engine:
        engine.client.images.get(REFERENCE).tag("other", "1")
        engine.client.images.remove(REFERENCE)
    (tagged,) = distribute_image(config, hosts, ignore)
    assert tagged.skipped
    assert image_on(b) == built.image_id
    with Engine(b) as engine:
        engine.client.images.remove("other:1")


def test_an_interrupted_image_goes_on_where_it_stopped(config: RunConfig, hosts: Hosts):
    a, b = hosts.all
    build_image(config, hosts, ignore)
    with Engine(a) as engine:
        archive = make_archive(engine, REFERENCE, image_on(a) or "", ignore)
    data = Path(archive.path).read_bytes()
    folder = Path(b.work_root) / "images"
    folder.mkdir()
    (folder / f"{archive.sha256}.tar.zst.part").write_bytes(data[: len(data) // 2])
    told: list[str] = []
    (sent,) = distribute_image(config, hosts, told.append)
    assert sent.sent_bytes == len(data) - len(data) // 2
    assert image_on(b) == image_on(a)
    assert f"node-a: its archive is there already, {archive.path}" in told


def test_an_image_also_passes_through_this_machine(config: RunConfig, hosts: Hosts):
    """For hosts without Docker's program or zstd."""
    a, b = hosts.all
    built = build_image(config, hosts, ignore)
    with Engine(a) as engine:
        archive = make_archive(engine, REFERENCE, built.image_id, ignore, direct=False)
    data = Path(archive.path).read_bytes()
    assert data[:4] == b"\x28\xb5\x2f\xfd"
    assert archive.sha256 == hashlib.sha256(data).hexdigest()
    with Engine(b) as engine:
        load_archive(engine, archive.path, ignore, direct=False)  # the hosts' disks are one
    assert image_on(b) == built.image_id


@pytest.mark.parametrize("direct", [True, False])
def test_an_archive_that_cannot_be_made_or_read_is_an_error_and_leaves_nothing(config: RunConfig, hosts: Hosts, direct: bool):
    a, _ = hosts.all
    with Engine(a) as engine:
        with pytest.raises(ClusterError, match=r"host node-a: image nothing:1 cannot be saved: .*reference does not exist"):
            make_archive(engine, "nothing:1", "sha256:00", ignore, direct=direct)
        assert archives(a) == []
        broken = Path(a.work_root) / "images" / "broken.tar.zst"
        broken.write_bytes(b"not packed")
        with pytest.raises(ClusterError, match="host node-a"):
            load_archive(engine, broken, ignore, direct=direct)


def test_without_a_build_the_host_that_has_the_image_gives_it(config: RunConfig, hosts: Hosts):
    a, b = hosts.all
    built = build_image(config, hosts, ignore)
    distribute_image(config, hosts, ignore)
    with Engine(a) as engine:
        engine.client.images.remove(REFERENCE)
    given = with_cluster(config.cluster, build=None)
    assert build_image(given, hosts, ignore) == Built(True, built.image_id, "node-b")
    (sent,) = distribute_image(given, hosts, ignore)
    assert (sent.host, sent.skipped) == ("node-a", False)
    assert image_on(a) == built.image_id
    for host in (a, b):
        with Engine(host) as engine:
            engine.client.images.remove(REFERENCE)
    with pytest.raises(ClusterError, match=rf"no image {REFERENCE} on node-a, node-b; set cluster\.build, or load"):
        build_image(given, hosts, ignore)


def test_an_image_for_another_architecture_is_refused_before_it_is_sent(config: RunConfig, hosts: Hosts):
    a, b = hosts.all
    build_image(config, hosts, ignore)
    with Engine(a) as engine:
        engine.client.images.load(for_architecture(b"".join(engine.client.images.get(REFERENCE).save(named=True)), "arm64"))
    with pytest.raises(ClusterError, match=rf"host node-b: is x86_64, and image {REFERENCE} is for arm64"):
        distribute_image(config, hosts, ignore)
    assert archives(a) == []
    assert image_on(b) is None


def for_architecture(saved: bytes, architecture: str) -> bytes:
    """A saved image that says it is for another machine."""
    with tarfile.open(fileobj=io.BytesIO(saved)) as archive:
        files = {m.name: archive.extractfile(m).read() for m in archive if m.isreg()}  # type: ignore[union-attr]
    (entry,) = json.loads(files["manifest.json"])
    changed = json.dumps(json.loads(files.pop(entry["Config"])) | {"architecture": architecture}).encode()
    entry["Config"] = f"{hashlib.sha256(changed).hexdigest()}.json"
    files |= {entry["Config"]: changed, "manifest.json": json.dumps([entry]).encode()}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()
