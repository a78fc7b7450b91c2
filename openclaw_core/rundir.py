"""The run directory: the one place that knows which file of a run is where."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from openclaw_core.config import RunConfig
from openclaw_core.errors import OpenClawError
from openclaw_core.tracking.packages import require_packages

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class RunDirError(OpenClawError):
    """A run id that is no plain name, a run that does not exist, or one that exists with another configuration."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class RunSecrets:
    """Keys of one run; secrets.json is readable by its owner only."""

    api_key: str
    """For clients of the gateway."""
    control_token: str
    """For the driver and the feeder."""
    ray_token: str
    """Keeps jobs and workers of others, and of earlier runs, off this run's Ray."""
    server_key: str
    """For the SGLang servers that the run starts: whoever has it can replace their weights."""
    named_keys: dict[str, str] = field(default_factory=dict)
    """More keys for clients of the gateway, by name: people and programs each with one of their own."""
    external_keys: dict[str, str] = field(default_factory=dict)
    """Keys of others' services that the run uses, by what for: ``judge``, ``simulator``. Not made here."""

    @property
    def all_keys(self) -> dict[str, str]:
        """Name → key, the run's own as ``run``."""
        return {"run": self.api_key, **self.named_keys}


@dataclass(frozen=True, slots=True)
class RunDir:
    """``runs/<run_id>/`` and what is in it."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def secrets_file(self) -> Path:
        return self.path / "secrets.json"

    @property
    def ledger_file(self) -> Path:
        return self.path / "ledger.sqlite"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def driver_file(self) -> Path:
        """What the process that drives the run last said of itself (driver.py)."""
        return self.path / "driver.json"

    @property
    def stop_file(self) -> Path:
        """There where a person has asked the driver to give up (driver.py)."""
        return self.path / "stop"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    @property
    def samples_file(self) -> Path:
        """Samples of some steps, kept by the driver where the ledger is on another machine (report/gather.py)."""
        return self.path / "samples.json"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def tracking(self) -> Path:
        """What experiment trackers keep here, and how far each was told (tracking/following.py)."""
        return self.path / "tracking"

    @property
    def tables(self) -> Path:
        """What the loss saw of every token, a file a step (inspection/tables.py)."""
        return self.path / "tables"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def outputs(self) -> Path:
        """What each stage has left elsewhere, a line a file (cluster/outputs.py)."""
        return self.path / "outputs"

    @property
    def processes(self) -> Path:
        """Records of the processes that this run started and owns (cluster/processes.py)."""
        return self.path / "processes"

    def config(self) -> RunConfig:
        """The configuration that the run was started with. Raises RunDirError if this is no run directory."""
        return RunConfig.model_validate_json(self._read(self.config_file))

    def secrets(self) -> RunSecrets:
        """The run's keys. Raises RunDirError if this is no run directory."""
        stored = json.loads(self._read(self.secrets_file))
        try:
            return RunSecrets(**stored)
        except TypeError as error:
            raise RunDirError(
                f"{self.secrets_file} was written by another version of this project ({error}); begin a new run, or use "
                "that version"
            ) from None

    def _read(self, file: Path) -> str:
        try:
            return file.read_text()
        except FileNotFoundError:
            raise RunDirError(f"{self.path} is no run directory: it has no {file.name}") from None


def create_run(
    config: RunConfig,
    run_id: str,
    external_keys: Mapping[str, str] | None = None,
    client_keys: Mapping[str, str] | None = None,
) -> RunDir:
    """Make ``<paths.runs>/<run_id>/`` with its config.json and keys, or take it as it is if the configuration is the same.

    Paths are stored absolute: the service and the feeder have other working directories. ``external_keys`` are laid over
    those that the run has, since keys of others' services may be changed between two starts; so are ``client_keys``, which
    clients of the gateway have already.

    Raises:
        RunDirError: ``run_id`` is no plain name, or that run exists with another configuration.
        ConfigError: a package that its trackers need is not installed.
    """
    if not RUN_ID.fullmatch(run_id):
        raise RunDirError(
            f"run id {run_id!r}: allowed are 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    require_packages(config)
    config = _with_absolute_paths(config)
    run = RunDir(config.paths.runs / run_id)
    if run.config_file.exists():
        _refuse_another(run, config)
        if external_keys or client_keys:
            keys = run.secrets()
            external, named = {**keys.external_keys, **(external_keys or {})}, {**keys.named_keys, **(client_keys or {})}
            write_secrets(run, replace(keys, external_keys=external, named_keys=named))
    else:
        run.logs.mkdir(parents=True, exist_ok=True)
        own = f"sk-{secrets.token_urlsafe(24)}", secrets.token_urlsafe(24), secrets.token_hex(32), secrets.token_urlsafe(24)
        write_secrets(run, RunSecrets(*own, named_keys=dict(client_keys or {}), external_keys=dict(external_keys or {})))
        write_whole(run.config_file, config.model_dump_json(indent=2), mode=0o644)
    return run


def read_key(file: Path) -> str:
    """The key that a file of one line holds. Raises RunDirError."""
    try:
        key = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise RunDirError(f"key file {file} cannot be read: {error}") from error
    if not key or len(key.split()) > 1:
        raise RunDirError(f"key file {file} must hold one key and nothing else")
    return key


def find_run(runs: Path, run_id: str) -> RunDir:
    """An existing run below ``runs``. Raises RunDirError naming those that exist."""
    run = RunDir(runs.absolute() / run_id)
    if not RUN_ID.fullmatch(run_id) or not run.config_file.exists():
        found = ", ".join(run.run_id for run in list_runs(runs)) or "none"
        raise RunDirError(f"no run {run_id!r} in {runs}; there are: {found}")
    return run


def existing_run(name: str, runs: Path) -> RunDir:
    """A run by its id or its directory. Raises RunDirError naming those that exist."""
    return RunDir(Path(name)) if (Path(name) / "config.json").exists() else find_run(runs, name)


def list_runs(runs: Path) -> list[RunDir]:
    """All runs below ``runs``, oldest first."""
    configs = sorted(runs.absolute().glob("*/config.json"), key=lambda file: file.stat().st_mtime)
    return [RunDir(file.parent) for file in configs]


def _with_absolute_paths(config: RunConfig) -> RunConfig:
    paths = {name: path.absolute() for name, path in config.paths}
    update: dict[str, object] = {"paths": config.paths.model_copy(update=paths)}
    if "/" in config.feeder.persona_set:
        personas = str(Path(config.feeder.persona_set).absolute())
        update["feeder"] = config.feeder.model_copy(update={"persona_set": personas})
    return config.model_copy(update=update)


def _refuse_another(run: RunDir, config: RunConfig) -> None:
    there, wanted = run.config().model_dump(), config.model_dump()
    for section, value in wanted.items():
        if there[section] != value:
            raise RunDirError(
                f"run {run.run_id!r} exists with another configuration: {section} is {there[section]!r} there, "
                f"{value!r} here; choose another run id, or give the same parameters to resume it"
            )


def write_secrets(run: RunDir, keys: RunSecrets) -> None:
    """Replace the run's keys; readable by their owner only."""
    write_whole(run.secrets_file, json.dumps(asdict(keys), indent=2), mode=0o600)


def write_whole(file: Path, text: str, mode: int) -> None:
    """Write a file that is there whole or not at all, with its mode from the first byte on."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.touch(mode=mode)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
