"""The nouns of a dry run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

LAUNCH = "launch machine"
Kind = Literal["command", "container", "copy", "file", "image", "look", "port", "process", "end", "none"]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a stage would do on a host."""

    stage: str
    host: str
    kind: Kind
    what: str
    details: dict[str, Any] = field(default_factory=dict)
    """JSON-able; nothing secret."""


@dataclass(frozen=True, slots=True)
class HostLine:
    """A host as it would be reached and used."""

    name: str
    ssh: str
    roles: tuple[str, ...]
    npus: dict[str, str]
    """Role of the plan → its NPUs, as in 0-3."""
    work_root: str
    docker_socket: str


@dataclass(frozen=True, slots=True)
class DryRun:
    """See the module's docstring. ``actions`` are in the order of the stages."""

    preset: str
    run_id: str
    hosts: tuple[HostLine, ...]
    actions: tuple[Action, ...]

    def on(self, host: str) -> tuple[Action, ...]:
        """Those of one host, or of the launch machine."""
        return tuple(action for action in self.actions if action.host == host)

    def only(self, names: Iterable[str]) -> DryRun:
        """For these hosts alone. Raises KeyError with the first name that is none of them."""
        wanted = set(names)
        if unknown := sorted(wanted - {host.name for host in self.hosts} - {LAUNCH}):
            raise KeyError(unknown[0])
        hosts = tuple(host for host in self.hosts if host.name in wanted)
        return replace(self, hosts=hosts, actions=tuple(action for action in self.actions if action.host in wanted))
