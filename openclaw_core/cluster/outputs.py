"""What the stages that produce files have left: whether it is still there as it was, without reading it.

Names and sizes of a model's files, and ids of images. A bit that has flipped is found by env-check, which reads the files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from openclaw_core.cluster.hosts import Host, Hosts, on_each
from openclaw_core.config.schema import RunConfig
from openclaw_core.rundir import RunDir, write_whole
from openclaw_core.weights.layout import hf_directory, torch_dist_directory

_LIST = 'cd -- "$1" 2>/dev/null && find -L . -type f -printf "%P %s\\n"'


def record_outputs(stage: str, config: RunConfig, run: RunDir) -> None:
    """Keep what ``stage`` has left. Raises ClusterError: a host is out of reach."""
    run.outputs.mkdir(exist_ok=True)
    write_whole(run.outputs / f"{stage}.txt", _fingerprint(stage, config), mode=0o644)


def outputs_changed(stage: str, config: RunConfig, run: RunDir) -> bool:
    """Whether something of what was recorded is lost, cut short or another one now; False before ``stage`` was ever done.

    Raises ClusterError: a host is out of reach.
    """
    record = run.outputs / f"{stage}.txt"
    return record.exists() and record.read_text() != _fingerprint(stage, config)


def _fingerprint(stage: str, config: RunConfig) -> str:
    found = _on_hosts(stage, config) if config.cluster.containers else _here(stage, config)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _here(stage: str, config: RunConfig) -> Mapping[str, int]:
    """File → bytes; nothing for the stages of the image, which a run without containers skips."""
    places = {"download-model": hf_directory, "convert-checkpoint": torch_dist_directory}
    return _listed(places[stage](config)) if stage in places else {}


def _listed(directory: Path) -> dict[str, int]:
    files = (file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)): file.stat().st_size for file in files}


def _on_hosts(stage: str, config: RunConfig) -> Mapping[str, object]:
    """The same of every host that has a part of it."""
    from openclaw_core.cluster.copies.making import hf_making, torch_dist_making
    from openclaw_core.cluster.docker.containers import Engine

    build, image = config.cluster.build, config.cluster.image

    def image_of(host: Host) -> object:
        with Engine(host) as engine:
            return engine.image_id(image or "")

    with Hosts(config.cluster) as hosts:
        if stage == "build-image":
            builders = [] if build is None else [hosts.named(build.host) if build.host else hosts.all[0]]
            return {host.name: image_of(host) for host in builders}
        if stage == "distribute-image":
            return dict(zip((host.name for host in hosts), on_each(hosts.all, image_of), strict=True))
        making = hf_making(config) if stage == "download-model" else torch_dist_making(config)
        needing = [hosts.named(host.name) for host in making.needing]
        listed = on_each(needing, lambda host: host.run("sh", "-c", _LIST, "list", str(making.on(host.config)), check=False))
        return {host.name: sorted(said.stdout.splitlines()) for host, said in zip(needing, listed, strict=True)}
