"""Where each form of a model is made, by which container, and which hosts get a copy: read by the stages and by the dry run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.specs import MODELS, ContainerSpec, command_spec, host_path, mounts, run_path
from openclaw_core.config.cluster import HostConfig
from openclaw_core.config.schema import RunConfig
from openclaw_core.weights.layout import hf_directory, torch_dist_directory
from openclaw_core.weights.sources import DirectorySource, PackageSource, parse_source

TOKEN_FILE = "hub-token"
"""In the run's directory on the host that downloads, while it does."""


@dataclass(frozen=True, slots=True)
class Making:
    """How one form of a model comes to be on the hosts that need it."""

    place: PurePosixPath
    """Inside the containers."""
    maker: HostConfig
    """Where it is made, or comes to first; the others get copies."""
    needing: tuple[HostConfig, ...]
    """The maker among them."""
    here: bool = False
    """The launch machine fetches the files and sends them to the maker; else a container does it there."""
    linked_to: PurePosixPath | None = None
    """On the maker itself: files that are there already, so that there is only a link to them."""

    def on(self, host: HostConfig) -> PurePosixPath:
        """Its directory on a host itself."""
        return host_path(host, self.place)


def hf_making(config: RunConfig) -> Making:
    """The model as downloaded, which every host loads.

    Raises ClusterError where the source is a directory that the containers do not see.
    """
    head, source = config.cluster.head, parse_source(config.model.source)
    linked_to = _outside(config, head, source.path) if isinstance(source, DirectorySource) else None
    place = _inside(config, hf_directory(config))
    return Making(place, head, config.cluster.hosts, isinstance(source, PackageSource), linked_to)


def torch_dist_making(config: RunConfig) -> Making:
    """The start weights, made of the head's copy of the model, for trainer and scorer."""
    needing = tuple(host for host in config.cluster.hosts if {"train", "teacher"} & set(host.roles))
    return Making(_inside(config, torch_dist_directory(config)), config.cluster.head, needing)


def download_spec(config: RunConfig, run_id: str, code: str) -> ContainerSpec:
    """The container that downloads, or makes the link. ``code``: digest of the code that it runs."""
    return _stage(config, run_id, "download-model", code)


def convert_spec(config: RunConfig, run_id: str, code: str) -> ContainerSpec:
    """The container that converts. ``code`` as ``download_spec``."""
    return _stage(config, run_id, "convert-checkpoint", code, devices=True)


def with_token(spec: ContainerSpec, run_id: str) -> ContainerSpec:
    """The container that downloads, told of the file with the hub's key (``token_path``)."""
    return replace(spec, environment=spec.environment | {"HF_TOKEN_PATH": str(run_path(run_id) / TOKEN_FILE)})


def token_path(host: HostConfig, run_id: str) -> PurePosixPath:
    """That file on the host itself."""
    return host_path(host, run_path(run_id) / TOKEN_FILE)


def _outside(config: RunConfig, host: HostConfig, path: PurePath) -> PurePosixPath:
    """Where the host itself has what its containers see at ``path``. Raises ClusterError where they see nothing there."""
    for mount in sorted(mounts(config.cluster, host, npu=False), key=lambda mount: -len(mount.target)):
        if path.is_relative_to(mount.target):
            return PurePosixPath(mount.source) / path.relative_to(mount.target).as_posix()
    raise ClusterError(
        f"model source file://{path} is not in the containers of host {host.name}; put it below {host.work_root} and name it "
        "as the containers see it (file:///openclaw/...), or add its directory to cluster.mounts"
    )


def _inside(config: RunConfig, directory: Path) -> PurePosixPath:
    """A place below paths.models as the containers have it."""
    return MODELS / directory.relative_to(config.paths.models).as_posix()


def _stage(config: RunConfig, run_id: str, stage: str, code: str, *, devices: bool = False) -> ContainerSpec:
    """``openclaw-rl stage`` on the head, in a container that ends with it."""
    command = ("stage", stage, "--run-dir", str(run_path(run_id)))
    return command_spec(config, run_id, config.cluster.head, stage, command, code, devices=devices)
