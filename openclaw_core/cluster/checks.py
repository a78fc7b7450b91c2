"""env-check: is this machine fit for the run, now? Each check is a row of a table, with advice where it failed."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from openclaw_core.cluster.ports import RAY_PORTS, SERVICE_PORTS, taken_ports
from openclaw_core.cluster.ray_head import find_head, runs_up
from openclaw_core.config import RunConfig
from openclaw_core.config.env import external_keys
from openclaw_core.feeder.errors import PersonaError
from openclaw_core.feeder.openai_simulator import KEY_ADVICE
from openclaw_core.feeder.persona import load_personas
from openclaw_core.rundir import RunDir
from openclaw_core.weights.errors import WeightsError
from openclaw_core.weights.files import file_records, read_json
from openclaw_core.weights.layout import hf_directory
from openclaw_core.weights.sources import MARKER
from openclaw_core.weights.spec import ModelSpec

DISTRIBUTION = "openclaw-rl"
MB = 1_000_000

# Measured on SmolLM2-135M: the trainer's peak is 4.5 GB (18 bytes a parameter of state, activations), the engine's 1.1 GB;
# Ray, the service, Prefect and the feeder need the rest.
MEMORY_BYTES_PER_PARAMETER = 42
MEMORY_BASE = 2_500 * MB
# bf16 parameters, fp32 masters, two fp32 moments.
CHECKPOINT_BYTES_PER_PARAMETER = 14
EXPORT_BYTES_PER_PARAMETER = 2
# Ledger, logs, metrics.
DISK_BASE = 200 * MB


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table: what was looked at, what was found, and what to do where it is not ``ok``."""

    check: str
    value: str
    ok: bool
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.value}" + ("" if self.ok else f"; {self.advice}")


def check_machine(config: RunConfig, run: RunDir | None = None) -> list[Check]:
    """Look at everything that ``run``, or a new run, needs of the machine it is started on. Never raises for what it finds.

    Of a run with containers little is on this machine; its hosts are looked at by host_checks.
    """
    rows = [_python(), *_packages("cpu"), _people(config, run)]
    if config.cluster.containers:
        return [*rows, _ssh()]
    parameters = _parameters(config)
    return [
        *rows,
        _cores(config),
        _memory(parameters),
        _disk(run.path if run else config.paths.runs.absolute(), config, parameters),
        *_model(config, needed=run is not None),
        *_ports(config, run),
    ]


def check_image() -> list[Check]:
    """Look at what the image for Ascend hosts has of this project, while it is built: no host and no NPU is there."""
    return [_python(), *_packages("npu")]


def _python() -> Check:
    version = platform.python_version()
    return Check("python", version, version.startswith("3.11."), "the project runs on Python 3.11: make setup")


def _ssh() -> Check:
    found = shutil.which("ssh")
    return Check("ssh", found or "not installed", found is not None, "install the OpenSSH client")


def _people(config: RunConfig, run: RunDir | None) -> Check:
    """Who feeds the run: their files, and the key of the API that plays them. Else it would be noticed when all is up."""
    feeder = config.feeder
    told = f"{', '.join(feeder.personas)} of {feeder.persona_set}, {feeder.simulator}"
    try:
        load_personas(feeder.persona_set, feeder.personas)
    except PersonaError as error:
        return Check("people", told, False, str(error))
    keys = run.secrets().external_keys if run and run.secrets_file.exists() else external_keys()
    missing = feeder.simulator == "openai" and "simulator" not in keys
    return Check("people", f"{told}, no key" if missing else told, not missing, KEY_ADVICE)


def _packages(extra: str) -> Iterator[Check]:
    """What pyproject.toml requires against what is installed: a row for each that differs, and one for the rest."""
    fitting = 0
    for requirement in _requirements(extra):
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            installed = None
        if installed is not None and requirement.specifier.contains(installed, prereleases=True):
            fitting += 1
        else:
            found = f"{installed or 'not installed'}, needed is {requirement.specifier or 'any version'}"
            yield Check(f"package {requirement.name}", found, False, "make setup")
    yield Check("packages", f"{fitting} as required by {DISTRIBUTION}[{extra}]", True)


def _requirements(extra: str) -> Iterator[Requirement]:
    for text in importlib.metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _cores(config: RunConfig) -> Check:
    cores, threads = psutil.cpu_count() or 1, max(config.train.threads, config.engine.threads)
    advice = f"train.threads and engine.threads should not be above {cores}: threads that share a core are slower than fewer"
    return Check("cores", f"{cores}, trainer and engine take turns with {threads} threads", threads <= max(2, cores), advice)


def _parameters(config: RunConfig) -> int | None:
    weights = list(hf_directory(config).glob("*.safetensors"))
    # Two bytes each: the stored form is bf16.
    return sum(file.stat().st_size for file in weights) // 2 if weights else None


def _memory(parameters: int | None) -> Check:
    needed = MEMORY_BASE + MEMORY_BYTES_PER_PARAMETER * (parameters or 0)
    available = psutil.virtual_memory().available
    value = f"{available // MB:,} MB available, about {needed // MB:,} MB needed"
    return Check("memory", value, available >= needed, "end other programs, or lower train.max_tokens_per_rank")


def _disk(place: Path, config: RunConfig, parameters: int | None) -> Check:
    # One more than is kept: the oldest goes only when the newest is whole.
    checkpoints = (config.train.keep_last + 1) * CHECKPOINT_BYTES_PER_PARAMETER
    needed = DISK_BASE + (checkpoints + EXPORT_BYTES_PER_PARAMETER) * (parameters or 0)
    free = shutil.disk_usage(_existing(place)).free
    value = f"{free // MB:,} MB free at {place}, about {needed // MB:,} MB needed"
    return Check("disk", value, free >= needed, "make room, lower train.keep_last, or choose another place with paths.runs")


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _model(config: RunConfig, needed: bool) -> Iterator[Check]:
    directory = hf_directory(config)
    if not needed and not directory.exists():
        yield Check("model", f"{config.model.name} is not there yet; download-model will fetch it", True)
        return
    again = f"remove {directory} and run again: download-model fetches it anew"
    try:
        spec = ModelSpec.from_hf(directory)
    except WeightsError as error:
        yield Check("model", str(error), False, again)
        return
    yield Check("model", f"{config.model.name}, {spec.family} of {spec.layers} layers", True)
    yield from _model_files(directory, again)
    fits = config.model.context_length <= spec.max_positions
    value = f"{config.model.context_length} of {spec.max_positions} positions"
    yield Check("context length", value, fits, f"set model.context_length to {spec.max_positions} at most")
    yield _chat_template(directory)


def _model_files(directory: Path, advice: str) -> Iterator[Check]:
    marker = read_json(directory / MARKER)
    if marker is not None:  # a linked directory has none: its owner may change it
        recorded = marker["files"]
        actual = file_records(file for name in recorded if (file := directory / name).is_file())
        changed = sorted(name for name in recorded if recorded[name] != actual.get(name))
        value = f"not as downloaded: {', '.join(changed)}" if changed else f"{len(recorded)} as downloaded (sha256)"
        yield Check("model files", value, not changed, advice)


def _chat_template(directory: Path) -> Check:
    # Brings in torch and transformers, which nothing else of this module needs.
    from openclaw_core.gateway.families import RenderError
    from openclaw_core.gateway.rendering import ChatRenderer

    try:
        ChatRenderer.from_pretrained(directory)
    except RenderError as error:
        return Check("chat template", str(error), False, "this model needs a renderer of its own in gateway/families.py")
    return Check("chat template", "rendered ids equal the model's own template", True)


def _ports(config: RunConfig, run: RunDir | None) -> Iterator[Check]:
    if run is not None and find_head(run) is not None:
        yield Check("ports", "in use by this run, which is alive", True)
        return
    taken = taken_ports(config.ports, (*SERVICE_PORTS, *RAY_PORTS))
    others = ", ".join(other.run_id for other in runs_up(config.paths.runs))
    for port in taken:
        advice = f"run {others} is up on this machine: wait for it, or `openclaw-rl stop` it; or {port.advice}"
        yield Check(port.setting, f"port {port.port} is taken{port.holder}", False, advice if others else port.advice)
    if not taken:
        numbers = ", ".join(str(getattr(config.ports, name)) for name in (*SERVICE_PORTS, *RAY_PORTS))
        yield Check("ports", f"{numbers} are free", True)
