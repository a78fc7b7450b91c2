"""What each stage would do, in order. ``dry_run.py`` puts it together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
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
from openclaw_core.cluster.dry_run.masking import HIDDEN, masked, masked_text
from openclaw_core.cluster.dry_run.nouns import LAUNCH, Action
from openclaw_core.cluster.host_checks.container import inside_spec
from openclaw_core.cluster.run_on_hosts import config_inside
from openclaw_core.cluster.specs import (
    CODE,
    RAY_TOKEN,
    WORK,
    ContainerSpec,
    command_spec,
    container_name,
    host_path,
    ray_specs,
    run_path,
)
from openclaw_core.config.cluster import ClusterConfig, HostConfig
from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.sglang.command import LAUNCHER, ServerAt, ServerCommand, engine_command, judge_command
from openclaw_core.engines.sglang.where import engine_at, engine_name, judge_at, judge_name
from openclaw_core.planning.placement import Placement
from openclaw_core.weights.layout import hf_directory, judge_directory, torch_dist_directory

CODE_DIGEST = "<code digest>"
"""In place of the digest of this project's code, which is known when its wheel is built."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The run that a dry run is made of."""

    config: RunConfig
    run_id: str
    placement: Placement

    @property
    def cluster(self) -> ClusterConfig:
        """Its hosts."""
        return self.config.cluster

    @property
    def inside(self) -> PurePosixPath:
        """The run's directory in a container."""
        return run_path(self.run_id)


def begin(asked: Asked) -> Iterator[Action]:
    """The run's own files on this machine."""
    yield from _run_files("begin", f"{asked.config.paths.runs}/{asked.run_id}")
    if asked.cluster.ssh.host_keys == "accept-new":
        known = str(asked.cluster.ssh.known_hosts or "~/.ssh/known_hosts")
        yield Action("begin", LAUNCH, "file", known, {"content": "keys of hosts that are not known yet are added"})


def _run_files(stage: str, where: str) -> Iterator[Action]:
    yield Action(stage, LAUNCH, "file", f"{where}/config.json", {"mode": "644", "content": "the configuration, without keys"})
    keys = dict.fromkeys(("api_key", "control_token", "ray_token", "named_keys", "external_keys"), HIDDEN)
    yield Action(stage, LAUNCH, "file", f"{where}/secrets.json", {"mode": "600", "content": keys})


def _builder(cluster: ClusterConfig) -> str:
    return (cluster.build.host if cluster.build else None) or cluster.hosts[0].name


def build_image(asked: Asked) -> Iterator[Action]:
    """The image, on the host that builds."""
    cluster, build = asked.cluster, asked.cluster.build
    if build is None:
        yield Action("build-image", LAUNCH, "none", f"no image is built: {cluster.image} must be on a host already")
        return
    details = {
        "context": str(build.context),
        "dockerfile": build.dockerfile,
        "arguments": masked(build.args),
        "network": build.network,
        "deadline_s": build.deadline_s,
        "unless": "an image of this context is there",
    }
    yield Action("build-image", _builder(cluster), "image", f"{cluster.image} is built", details)


def distribute_image(asked: Asked) -> Iterator[Action]:
    """Image, code, configuration and keys to the hosts that lack them."""
    stage, cluster, builder = "distribute-image", asked.cluster, _builder(asked.cluster)
    for host in cluster.hosts:
        if host.name != builder:
            archive = f"{host_path(host, WORK / 'images')}/<sha256>.tar.zst, removed when it is loaded"
            details = {"from": f"{builder}, by the {LAUNCH}", "by_way_of": archive, "unless": "the same image is there"}
            yield Action(stage, host.name, "copy", f"image {cluster.image}, compressed, then loaded", details)
    yield Action(stage, LAUNCH, "file", "the wheel of this project", {"content": "this checkout's code"})
    for host in cluster.hosts:
        place = host_path(host, CODE / CODE_DIGEST)
        yield Action(stage, host.name, "copy", f"{place}/", {"content": "the wheel, unpacked", "unless": "it is there"})
        yield from _pushed(stage, asked, host)


def _pushed(stage: str, asked: Asked, host: HostConfig) -> Iterator[Action]:
    place = host_path(host, asked.inside)
    note = {"mode": "644", "content": "the configuration with the containers' paths, without keys"}
    yield Action(stage, host.name, "file", f"{place}/config.json", note)
    yield Action(stage, host.name, "file", f"{place}/{RAY_TOKEN}", {"mode": "600", "content": HIDDEN})
    if host is asked.cluster.head:
        content = "keys of gateway, control API, Ray, SGLang servers, judge and simulator: ****"
        yield Action(stage, host.name, "file", f"{place}/secrets.json", {"mode": "600", "content": content})


def _to_its_end(spec: ContainerSpec) -> Action:
    """A container that does a stage, or a part of it, and is gone then."""
    return Action(spec.role, spec.host, "container", f"{spec.name}, to its end", container_details(spec))


def download_model(asked: Asked) -> Iterator[Action]:
    """The model, on every host; one of them downloads it."""
    stage, config, making = "download-model", asked.config, hf_making(asked.config)
    container = download_spec(config, asked.run_id, CODE_DIGEST)
    if making.here:
        what = {"from": config.model.source, "unless": "a host has it, whole"}
        yield Action(stage, LAUNCH, "copy", f"{hf_directory(config)}/", what)
    elif making.linked_to is not None:
        yield _to_its_end(container)
    else:
        yield _to_its_end(with_token(container, asked.run_id))
        token = {"mode": "600", "content": HIDDEN, "unless": "the run has no key of the hub", "kept": "while it downloads"}
        yield Action(stage, making.maker.name, "file", str(token_path(making.maker, asked.run_id)), token)
    first = f"the {LAUNCH}" if making.here else f"a link to {making.linked_to}" if making.linked_to else "the hub"
    yield from _made_and_copied(stage, making, first, f"{config.model.source}, files checked by sha256")


def convert_checkpoint(asked: Asked) -> Iterator[Action]:
    """The start weights, for trainer and scorer; the head makes them."""
    yield _to_its_end(convert_spec(asked.config, asked.run_id, CODE_DIGEST))
    yield from _made_and_copied("convert-checkpoint", torch_dist_making(asked.config), "the model", "the start weights")


def _made_and_copied(stage: str, making: Making, first: str, content: str) -> Iterator[Action]:
    for host in making.needing:
        source = first if host is making.maker else f"{making.maker.name}, by the {LAUNCH}"
        details = {"from": source, "content": content, "unless": "they are there, whole"}
        yield Action(stage, host.name, "copy", f"{making.on(host)}/", details)


LOOKS = (
    "machine and clock; Docker engine, image and its architecture; containers of other runs",
    "work_root: file system, space, rights; memory; ports; network interface; names of the other hosts",
    "digests of code and model",
)


def env_check(asked: Asked) -> Iterator[Action]:
    """What is looked at on each host; nothing is changed."""
    for host in asked.cluster.hosts:
        for what in LOOKS:
            yield Action("env-check", host.name, "look", what)
        if host.npus:
            details = {"command": ["npu-smi", "info"], "for": "health, memory in use, processes and whose they are"}
            yield Action("env-check", host.name, "command", f"{host.npus} NPUs are looked at", details)
        yield _to_its_end(inside_spec(asked.config, asked.run_id, host, CODE_DIGEST, "<host_checks/inside.py>"))


def launch_ray(asked: Asked) -> Iterator[Action]:
    """Ray's head and workers, in containers."""
    stage, config = "launch-ray", asked.config
    for spec in ray_specs(config, asked.run_id, asked.placement, CODE_DIGEST):
        yield Action(stage, spec.host, "container", spec.name, container_details(spec))
    head = asked.cluster.head.name
    for name, what in (("ray_gcs", "Ray's head"), ("ray_dashboard", "dashboard and job API"), ("ray_client", "Ray's clients")):
        yield _port(stage, head, getattr(config.ports, name), what, "every address, by Ray's token")
    for host in asked.cluster.hosts:
        yield Action(stage, host.name, "port", "10002-19999 and a few others", {"what": "Ray's workers", "open_to": "hosts"})


def _port(stage: str, host: str, port: int, what: str, open_to: str) -> Action:
    return Action(stage, host, "port", str(port), {"what": what, "open_to": open_to})


def container_details(spec: ContainerSpec) -> dict[str, Any]:
    """A container as it would be made; the network is the host's."""
    mounts = [
        f"{mount.source} → {mount.target}{' (read-only)' if mount.read_only else ''}{', where it exists' * mount.optional}"
        for mount in spec.mounts
    ]
    return {
        "image": spec.image,
        "command": [masked_text(word) for word in spec.command],
        "environment": masked(spec.environment),
        "mounts": mounts,
        "devices": list(spec.devices),
        "labels": spec.labels,
        "network": "host",
        "hostname": spec.hostname,
        "shm_size_mb": spec.shm_size_mb,
        "restarts": spec.restarts,
    }


def train_loop(asked: Asked) -> Iterator[Action]:
    """The service, what it starts, where it listens and what it keeps."""
    stage, config, head = "train-loop", asked.config, asked.cluster.head
    command = [asked.cluster.python, "-m", "openclaw_core.cli", "serve", "--run-dir", str(asked.inside)]
    details = {"command": command, "in": container_name(asked.run_id, "head"), "deadline_s": asked.cluster.start_deadline_s}
    yield Action(stage, head.name, "process", f"Ray job {asked.run_id}-1, the training service", details)
    yield _port(stage, head.name, config.ports.gateway, "the gateway", f"{head.reached_at}, by the run's keys")
    yield _port(stage, head.name, config.ports.control, "the control API", "the run's token")
    servers = config.engine.backend == "sglang"
    for role in asked.placement.roles:
        if servers and role is asked.placement.engine:
            continue
        for place, cards in zip(role.hosts, role.cards or ((),) * len(role.hosts), strict=True):
            on = {"npus": list(cards)} if cards else {}
            yield Action(stage, place, "process", f"{role.name}, {role.ranks} ranks", on)
    if servers:
        yield from _engines(stage, asked)
    yield from _judge(stage, asked)
    trainers = [host for host in asked.cluster.hosts if host.name in asked.placement.trainer.hosts]
    for host in trainers:
        where = host_path(host, asked.inside)
        kept = f"newest {config.train.keep_last}, every {config.train.save_interval} steps"
        yield Action(
            stage, host.name, "file", f"{where}/checkpoints/", {"content": "this host's parts of checkpoints", "kept": kept}
        )
    more = "ledger.sqlite, metrics.jsonl, tables/, evaluation/, export/, logs/"
    yield Action(stage, head.name, "file", f"{host_path(head, asked.inside)}/", {"content": more})
    yield Action(stage, LAUNCH, "file", f"{config.paths.runs}/{asked.run_id}/logs/", {"content": "logs of every host"})


def _engines(stage: str, asked: Asked) -> Iterator[Action]:
    config = config_inside(asked.config)
    for index, place in enumerate(asked.placement.engine.hosts):
        at = engine_at(config, asked.inside, index, HIDDEN)
        command = engine_command(config, hf_directory(config), index=index, at=at, launcher=_launcher(asked))
        yield from _server(stage, asked, place, engine_name(index), command, at, config.engine.sglang.port + index)


def _judge(stage: str, asked: Asked) -> Iterator[Action]:
    config = config_inside(asked.config)
    judge = config.judge
    if config.judge_servers:
        for host in asked.cluster.with_role("prm"):
            at = judge_at(config, asked.inside, host, HIDDEN)
            command = judge_command(config, judge_directory(config), at=at, launcher=_launcher(asked))
            yield from _server(stage, asked, host.name, judge_name(host), command, at, judge.server.port)
    elif judge.client == "scripted":
        place = asked.cluster.with_role("prm")[0].name if judge.placement == "prm" else asked.cluster.head.name
        yield Action(stage, place, "process", "scripted judge")
    else:
        urls = [masked_text(url) for url in judge.base_urls]
        yield Action(stage, asked.cluster.head.name, "none", "the judge is asked, not started", {"urls": urls})


def _launcher(asked: Asked) -> tuple[str, ...]:
    """The Python of the containers, not this machine's."""
    return (asked.cluster.python, *LAUNCHER[1:])


def _server(
    stage: str, asked: Asked, place: str, name: str, command: ServerCommand, at: ServerAt, port: int
) -> Iterator[Action]:
    host = next(host for host in asked.cluster.hosts if host.name == place)
    role = "head" if host is asked.cluster.head else "worker"
    details: dict[str, Any] = {"npus": list(at.cards)} if at.cards else {}
    details |= {
        "command": [masked_text(word) for word in command.arguments],
        "environment": masked(command.environment),
        "in": container_name(asked.run_id, role),
    }
    yield Action(stage, place, "process", f"SGLang server {name}", details)
    if at.key is not None:
        key_file = host_path(host, PurePosixPath(at.key.file))
        yield Action(stage, place, "file", str(key_file), {"mode": "600", "content": HIDDEN})
    yield _port(stage, place, port, f"SGLang server {name}", f"{at.address}, by the run's key")


def feeder(asked: Asked) -> Iterator[Action]:
    """The container of the simulated people."""
    command = ("feed", "--run-dir", str(asked.inside))
    spec = command_spec(asked.config, asked.run_id, asked.cluster.head, "feeder", command, CODE_DIGEST)
    yield Action("feeder", spec.host, "container", spec.name, container_details(spec))


def teardown(asked: Asked) -> Iterator[Action]:
    """What is ended, workers before the head."""
    stage, head = "teardown", asked.cluster.head
    yield Action(stage, head.name, "end", container_name(asked.run_id, "feeder"))
    yield Action(stage, head.name, "end", "the training service, after its phase, with a checkpoint")
    for host in (*(host for host in asked.cluster.hosts if host is not head), head):
        yield Action(stage, host.name, "end", container_name(asked.run_id, "head" if host is head else "worker"))
        if host.npus:
            what = "processes on its NPUs that this run recorded; those of others are told and left alone"
            yield Action(stage, host.name, "end", what)


def here(asked: Asked) -> Iterator[Action]:
    """A run without hosts: everything is on this machine, in processes."""
    config, runs = asked.config, asked.config.paths.runs / asked.run_id
    yield from _run_files("begin", str(runs))
    yield Action("download-model", LAUNCH, "copy", f"{config.model.source} into {hf_directory(config)}/")
    yield Action("convert-checkpoint", LAUNCH, "copy", f"{torch_dist_directory(config)}/")
    yield Action("env-check", LAUNCH, "look", "packages, memory, disk, ports")
    yield Action("launch-ray", LAUNCH, "process", "Ray's head")
    yield Action("train-loop", LAUNCH, "process", f"openclaw-rl serve --run-dir {runs}")
    yield Action("feeder", LAUNCH, "process", f"openclaw-rl feed --run-dir {runs}")
    for name, port in config.ports:
        if name != "prefect":
            yield _port("train-loop", LAUNCH, port, f"ports.{name}", "loopback")
    yield Action("teardown", LAUNCH, "end", "these processes, by their recorded ids")
