"""Are a run's ports free? Asked before anything is started, so that a taken port is an error that names its setting."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.config.schema import PortsConfig

SERVICE_PORTS = ("gateway", "control")
RAY_PORTS = ("ray_gcs", "ray_dashboard", "ray_client")


def check_ports(ports: PortsConfig, names: Iterable[str]) -> None:
    """Raise ClusterError naming every taken port of ``names``, its setting, who has it and what to do."""
    taken = taken_ports(ports, names)
    if taken:
        raise ClusterError("\n".join(map(str, taken)))


@dataclass(frozen=True, slots=True)
class Taken:
    """A port that a run cannot have."""

    setting: str
    port: int
    holder: str
    """" by pid 7 (its command line)", or "" where that is not to be seen."""

    @property
    def advice(self) -> str:
        return f"end that process or choose another port with {self.setting}=<port>"

    def __str__(self) -> str:
        return f"port {self.port} ({self.setting}) is taken{self.holder}; {self.advice}"


def taken_ports(ports: PortsConfig, names: Iterable[str]) -> list[Taken]:
    """Those of ``names`` that are not free."""
    numbers = {f"ports.{name}": int(getattr(ports, name)) for name in names}
    return [Taken(setting, port, _holder(port)) for setting, port in numbers.items() if not port_is_free(port)]


def port_is_free(port: int) -> bool:
    """True if a server could listen on ``port`` on every address: loopback is not enough, Ray's GCS listens on all."""
    with socket.socket() as probe:
        # Only listeners count: connections in TIME_WAIT do not hinder a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _holder(port: int) -> str:
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and getattr(connection.laddr, "port", None) == port
        if listens and connection.pid:
            try:
                command = " ".join(psutil.Process(connection.pid).cmdline())
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                return f" by pid {connection.pid}"
            return f" by pid {connection.pid} ({command[:80]})"
    return ""
