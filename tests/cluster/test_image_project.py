"""The project's own Dockerfile, built as stage build-image builds it: by a real engine, over SSH, without a network.

Real: Dockerfile, image/ and .dockerignore of this repository, its wheel, docker-py and the engine's classic builder, pip, and
all that the build imports, at the lock's versions. Stand-in: the base, which has no CANN and of most packages the metadata
alone (stack_stand_in), and the machine, which is this one and not an Ascend host.
"""

from __future__ import annotations

import platform
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

import openclaw_core
from openclaw_core.cluster.copies.code import build_wheel, code_digest
from openclaw_core.cluster.docker.images import BuildFailed, Built, build_image
from openclaw_core.cluster.hosts import Hosts
from openclaw_core.cluster.simulation.mounts import simulated_mounts, simulated_python
from openclaw_core.config import RunConfig, load_config
from openclaw_core.config.cluster import BuildConfig, ClusterConfig
from tests.cluster.parts import engine
from tests.cluster.stack_stand_in import imported_wheels, stand_in_context
from tests.image_files import ROOT, pins

pytestmark = pytest.mark.cluster

BASE, REPOSITORY = "openclaw-stand-in:1", "openclaw-project"
USER = 1000


@dataclass(frozen=True)
class Project:
    """The image of an unchanged context."""

    context: Path
    config: RunConfig
    built: Built
    told: list[str]


@pytest.fixture(scope="module")
def client(cluster_config: ClusterConfig) -> Iterator[DockerClient]:
    """Of the host that builds. What is built here is gone at the end."""
    with Hosts(cluster_config) as connected, engine(connected.all[0]) as to_engine:
        yield to_engine
        for image in [*to_engine.images.list(REPOSITORY), *to_engine.images.list(BASE)]:
            to_engine.images.remove(image.tags[0], force=True)
        to_engine.images.prune()


@pytest.fixture(scope="module")
def base(client: DockerClient, sim_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The stand-in for the stack."""
    context = stand_in_context(tmp_path_factory.mktemp("stand-in"), sim_image)
    client.images.build(path=str(context), tag=BASE, rm=True, forcerm=True, network_mode="none")
    shutil.rmtree(context)
    return BASE


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def project(cluster_config: ClusterConfig, base: str, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    context = context_in(tmp_path_factory.mktemp("project") / "context", wheel, *imported_wheels())
    config = run_config(cluster_config, context, "1", BASE_IMAGE=base, REVISION="abc")
    told: list[str] = []
    with Hosts(cluster_config) as connected:
        built = build_image(config, connected, told.append)
    return Project(context, config, built, told)


def context_in(folder: Path, *wheels: Path) -> Path:
    """This repository's, with these wheels."""
    folder.mkdir()
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy2(ROOT / name, folder)
    shutil.copytree(ROOT / "image", folder / "image", ignore=shutil.ignore_patterns("*.whl", "__pycache__"))
    for file in wheels:
        shutil.copy2(file, folder / "image/wheels")
    return folder


def run_config(cluster: ClusterConfig, context: Path, tag: str, **args: str) -> RunConfig:
    build = BuildConfig(context=context, network="none", deadline_s=300, args=args)
    changes: dict[str, Any] = {"image": f"{REPOSITORY}:{tag}", "build": build}
    return load_config("local-cpu").model_copy(update={"cluster": cluster.model_copy(update=changes)})


def variant(project: Project, context: Path, tag: str, **args: str) -> RunConfig:
    """The same build of another context, or with other arguments."""
    build = project.config.cluster.build
    assert build is not None
    return run_config(project.config.cluster, context, tag, **build.args | args)


def changed(project: Project, folder: Path, file: str, old: str, new: str) -> Path:
    """The same context but for a piece of one file."""
    context = shutil.copytree(project.context, folder / "changed")
    text = (context / file).read_text()
    assert text.count(old) == 1
    (context / file).write_text(text.replace(old, new))
    return context


def required() -> int:
    """Packages that the image must have, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return len(project["dependencies"]) + len(project["optional-dependencies"]["npu"])


def ignore(_line: str) -> None:
    pass


def test_it_is_built_checked_against_its_pins_and_looked_at_by_its_doctor(project: Project):
    assert not project.built.reused
    steps = [line for line in project.told if line.startswith("Step ")]
    (number, total) = steps[-1].split()[1].split("/")
    assert number == total
    assert not [line for line in project.told if "Using cache" in line]
    assert f"{len(pins('requirements.lock') | pins('pins.txt'))} pins hold" in project.told
    doctor = project.told.index(next(line for line in project.told if "doctor.sh ${DOCTOR}" in line))
    said = [line for line in project.told[doctor:] if line.startswith(("package", "python"))]
    assert said == [f"python: {platform.python_version()}", f"packages: {required()} as required by openclaw-rl[npu]"]


def test_it_runs_as_its_user_and_says_what_it_is(project: Project, client: DockerClient, wheel: Path):
    image = client.images.get(project.built.image_id)
    labels = image.labels
    assert labels["org.opencontainers.image.title"] == "openclaw-rl"
    assert labels["org.opencontainers.image.version"] == openclaw_core.__version__
    assert labels["org.opencontainers.image.revision"] == "abc"
    assert labels["org.opencontainers.image.base.name"] == BASE
    assert labels["openclaw.code-digest"] == code_digest(wheel)
    assert image.attrs["Config"]["Cmd"] == ["openclaw-rl", "--help"]
    assert image.attrs["Config"]["User"] == f"{USER}:{USER}"
    look = "id -u; id -g; echo $HOME; pwd; touch here && ls; ls /opt/openclaw/plugin/openclaw.plugin.json; openclaw-rl --help"
    said = client.containers.run(image, ["sh", "-c", look], network_mode="none", remove=True).decode()
    *looked, shown = said.split("\n", 6)
    assert looked == [
        *(str(USER), str(USER), "/home/openclaw", "/opt/openclaw/work", "here", "/opt/openclaw/plugin/openclaw.plugin.json")
    ]
    assert "train a language model online from live conversations" in shown


def test_it_is_used_again_for_the_same_context_and_for_no_other(project: Project, hosts: Hosts, tmp_path: Path):
    copy = shutil.copytree(project.context, tmp_path / "copy")
    assert build_image(variant(project, copy, "1"), hosts, ignore) == Built(True, project.built.image_id, "node-a")
    # Of what no step copies, so that every step but the last is found in the engine's cache.
    other = changed(project, tmp_path, "image/fetch_file.sh", "set -eu\n", "set -eu\n\n")
    told: list[str] = []
    built = build_image(variant(project, other, "1"), hosts, told.append)
    assert not built.reused
    assert built.image_id != project.built.image_id
    assert " ---> Using cache" in told


def test_a_package_that_is_not_as_pinned_fails_the_build_by_name(project: Project, hosts: Hosts, tmp_path: Path):
    other = changed(project, tmp_path, "image/requirements.lock", "\ntorch==2.8.0 ", "\ntorch==2.8.1 ")
    with pytest.raises(BuildFailed, match=r"install_project\.sh(.|\n)*\nerror: torch: 2\.8\.0 is installed, pinned is 2\.8\.1"):
        build_image(variant(project, other, "moved"), hosts, ignore)


def test_a_doctor_who_finds_something_fails_the_build_in_his_words(project: Project, hosts: Hosts):
    # As for a preset that is not for this image: it wants other packages.
    other = variant(project, project.context, "sick", DOCTOR="--preset local-cpu")
    with pytest.raises(BuildFailed, match=r"doctor\.sh \$\{DOCTOR\}(.|\n)*\npackage reasoning-gym: not installed, needed is "):
        build_image(other, hosts, ignore)


def test_python_can_come_with_the_container(
    cluster_config: ClusterConfig, hosts: Hosts, client: DockerClient, sim_image: str, wheel: Path, tmp_path: Path
):
    context = context_in(tmp_path / "context", wheel)
    args = {"BASE_IMAGE": sim_image, "INSTALL": "mounted", "PYTHON": simulated_python(), "HF_ENDPOINT": "x"}
    told: list[str] = []
    built = build_image(run_config(cluster_config, context, "mounted", **args), hosts, told.append)
    assert "no Python while building: run openclaw-rl doctor in a container" in told
    assert "[Warning] One or more build-args [HF_ENDPOINT] were not consumed" in told
    mounts = [f"{mount.source}:{mount.target}:ro" for mount in simulated_mounts()]
    said = client.containers.run(built.image_id, volumes=mounts, network_mode="none", remove=True)
    assert "train a language model online from live conversations" in said.decode()
