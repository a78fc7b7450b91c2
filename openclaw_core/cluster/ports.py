"""Are a run's ports free? Asked before anything is started, so that a taken port is an error that names its setting."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import psutil

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.config.schema import PortsConfig

SERVICE_PORTS = ("gateway", "control")
RAY_PORTS = ("ray_gcs", "ray_dashboard", "ray_client")


def check_ports(ports: PortsConfig, names: Iterable[str]) -> None:
    """Raise ClusterError naming every taken port of ``names``, its setting, who has it and what to do."""
    taken = [message for name in names if (message := describe_taken(ports, name))]
    if taken:
        raise ClusterError("\n".join(taken))


def describe_taken(ports: PortsConfig, name: str) -> str | None:
    """What is wrong with ``ports.<name>``, or None if it is free."""
    port: int = getattr(ports, name)
    if port_is_free(port):
        return None
    return (
        f"port {port} (ports.{name}) is taken{_holder(port)}; end that process or choose another port with ports.{name}=<port>"
    )


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
