"""The one place that reads the process environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_core.config.hosts import OnHosts, lay_on_hosts
from openclaw_core.config.legacy import KEYS, RETIRED, ClusterHints, Legacy, read_legacy
from openclaw_core.config.load import ConfigError, load_config
from openclaw_core.config.schema import RunConfig

HUB = "hub"
"""What the key of the hub that models come from is called."""

WEBHOOK = "health_webhook"
"""What the address is called that is told how a run is. It is a secret itself: whoever has it can write there."""

EXTERNAL_KEYS = {
    HUB: ("HF_TOKEN",),
    "judge": ("OPENCLAW_JUDGE_API_KEY",),
    "simulator": ("OPENCLAW_SIMULATOR_API_KEY", "ARK_API_KEY"),
    WEBHOOK: ("OPENCLAW_HEALTH_WEBHOOK",),
}
"""Keys of others' services: what for → variables that may hold it, the first one set counts."""

CLIENT_KEY = "SGLANG_API_KEY"
"""The variable of a key that clients have, and the name of that key in the run."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person asks for at a shell: by preset, environment and command line."""

    config: RunConfig
    overrides: dict[str, Any]
    """Dotted name → value, of environment and command line together."""
    told: tuple[str, ...]
    """A line for each variable that counts, to be shown before anything is done."""


def load_asked(preset: str, assigned: Mapping[str, Any]) -> Asked:
    """Preset, then environment, then ``assigned`` (the command line); the later wins.

    Only for commands that a person gives. Services, and flows in a worker, have another environment than the person: for
    them a run's config.json and a flow run's parameters are the truth.

    Raises:
        ConfigError: as ``load_config`` and ``read_legacy``, with the variables that the message is about.
    """
    legacy = read_legacy(os.environ)
    overrides, hosts = {**legacy.overrides, **assigned}, OnHosts({}, {})
    try:
        hosts = lay_on_hosts(legacy, load_config(preset, overrides), assigned)
        overrides = {**hosts.overrides, **overrides}
        config = load_config(preset, overrides)
    except ConfigError as error:
        lines = [line for name, line in _parameter_lines(legacy, assigned).items() if _is_about(str(error), legacy, name)]
        lines += _host_lines(legacy, hosts) if "cluster." in str(error) else []
        raise ConfigError("\n".join([str(error), *(f"from the environment: {line}" for line in lines)])) from None
    lines = _host_lines(legacy, hosts)
    return Asked(config, overrides, (*_told(legacy, assigned), *lines))


def cluster_hints() -> ClusterHints:
    """What the environment says of a cluster's hosts. Raises ConfigError."""
    return read_legacy(os.environ).hints


def external_keys() -> dict[str, str]:
    """The keys of others' services that the environment holds, by what for. An empty variable is none."""
    found = {what: next(filter(None, map(os.environ.get, names)), None) for what, names in EXTERNAL_KEYS.items()}
    return {what: key for what, key in found.items() if key}


def client_keys() -> dict[str, str]:
    """A key for clients of the gateway that the environment holds, by its name. Raises ConfigError."""
    key = read_legacy({CLIENT_KEY: os.environ.get(CLIENT_KEY, "")}).gateway_key
    return {CLIENT_KEY: key} if key else {}


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with ``extra`` laid over it, for a child process."""
    return {**os.environ, **extra}


def _told(legacy: Legacy, assigned: Mapping[str, Any]) -> Iterator[str]:
    yield from _parameter_lines(legacy, assigned).values()
    for name in legacy.retired:
        yield f"{name}={legacy.shown[name]}: {RETIRED[name].instead}"
    if legacy.gateway_key is not None:
        yield f"{CLIENT_KEY}: {KEYS[CLIENT_KEY]}"


def _host_lines(legacy: Legacy, hosts: OnHosts) -> list[str]:
    """A line for each variable that says something of the hosts."""
    return [f"{name}={legacy.shown[name]} → {what}" for name, what in hosts.said.items()]


def _parameter_lines(legacy: Legacy, assigned: Mapping[str, Any]) -> dict[str, str]:
    """Variable → what became of it."""
    lines: dict[str, str] = {}
    for name, values in legacy.parameters.items():
        counts = [f"{dotted}={value}" for dotted, value in values.items() if dotted not in assigned]
        overruled = [f"{dotted}={assigned[dotted]} of the command line" for dotted in values if dotted in assigned]
        what = [*counts, *(f"no effect, for {text} counts" for text in overruled)]
        lines[name] = f"{name}={legacy.shown[name]} → {', '.join(what)}"
    return lines


def _is_about(message: str, legacy: Legacy, name: str) -> bool:
    return any(dotted in message for dotted in legacy.parameters[name])
