"""The network of a simulation: a bridge, and for each host a namespace with a cable to it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import psutil

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.simulation.state import SimulatedHost, SimulationState

CANDIDATES = tuple(IPv4Network(f"10.199.{third}.0/24") for third in range(77, 255))
NAMESPACES = Path("/run/netns")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


def call(*command: str) -> str:
    """Run a program of this machine. Raises ClusterError with what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ClusterError(f"there is no program {command[0]!r} on this machine") from None
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip() or f'status {done.returncode}'}")
    return done.stdout


@contextlib.contextmanager
def choosing() -> Iterator[None]:
    """One simulation at a time looks for a free subnet and takes it. The kernel lets go when its process ends."""
    descriptor = os.open("/run", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def free_subnet() -> IPv4Network:
    """The first of ``CANDIDATES`` that nothing here uses: no address, route, name server or proxy, in any namespace."""
    used = [*_routed(), *_mentioned()]
    for subnet in CANDIDATES:
        if not any(subnet.overlaps(other) for other in used):
            return subnet
    raise ClusterError(
        f"every network from {CANDIDATES[0]} to {CANDIDATES[-1]} is in use on this machine (ip route show table all)"
    )


def make_network(state: SimulationState) -> None:
    """Bridge, namespaces and cables, all up."""
    call("ip", "link", "add", state.bridge, "type", "bridge")
    call("ip", "addr", "add", f"{state.gateway}/{state.subnet.prefixlen}", "dev", state.bridge)
    call("ip", "link", "set", state.bridge, "up")
    for host in state.hosts:
        name = host.namespace
        call("ip", "netns", "add", name)
        call("ip", "link", "add", host.veth, "type", "veth", "peer", "name", "eth0", "netns", name)
        call("ip", "link", "set", host.veth, "master", state.bridge, "up")
        call("ip", "-n", name, "addr", "add", f"{host.address}/{state.subnet.prefixlen}", "dev", "eth0")
        for device in ("eth0", "lo"):
            call("ip", "-n", name, "link", "set", device, "up")


def remove_network(state: SimulationState) -> None:
    """What there is of it. The cable goes before its namespace: that may let go of its end late, and the name stays taken."""
    for device in (*(host.veth for host in state.hosts), state.bridge):
        if _device_exists(device):
            call("ip", "link", "del", device)
    for host in state.hosts:
        if (NAMESPACES / host.namespace).exists():
            call("ip", "netns", "del", host.namespace)


def set_link(host: SimulatedHost, up: bool) -> None:
    """Plug the cable in or out. Raises ClusterError where it does not exist."""
    call("ip", "link", "set", host.veth, "up" if up else "down")


def link_is_up(host: SimulatedHost) -> bool | None:
    """None: there is no cable."""
    if not _device_exists(host.veth):
        return None
    flags = json.loads(call("ip", "-j", "link", "show", host.veth))[0]["flags"]
    return "UP" in flags


def inside(host: SimulatedHost, *command: str) -> tuple[str, ...]:
    """The command line that runs in the host's network. Not ``ip netns exec``: it hides the cgroups from an engine."""
    return ("nsenter", f"--net={NAMESPACES / host.namespace}", *command)


def processes_in(host: SimulatedHost) -> list[psutil.Process]:
    """Those that have the host's network, whoever started them."""
    if not (NAMESPACES / host.namespace).exists():
        return []
    found: list[psutil.Process] = []
    for pid in call("ip", "netns", "pids", host.namespace).split():
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(pid)))
    return found


def check_traffic(state: SimulationState) -> None:
    """Raises ClusterError where the first host cannot reach another one: bridged packets may meet this machine's firewall."""
    first, *others = state.hosts
    for host in others:
        try:
            call(*inside(first, "timeout", "10", "bash", "-c", f"exec 3<>/dev/tcp/{host.address}/22"))
        except ClusterError as error:
            raise ClusterError(
                f"{first.name} cannot reach {host.name}: {error}; this machine's firewall takes what passes a bridge: "
                "sysctl -w net.bridge.bridge-nf-call-iptables=0, or allow forwarding"
            ) from None


def _device_exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def _routed() -> Iterator[IPv4Network]:
    namespaces = sorted(file.name for file in NAMESPACES.iterdir()) if NAMESPACES.exists() else []
    for where in ((), *(("-n", name) for name in namespaces)):
        for what in (("addr",), ("route", "show", "table", "all")):
            # A namespace that another simulation has just removed has no answer.
            with contextlib.suppress(ClusterError):
                yield from _networks(json.loads(call("ip", *where, "-4", "-j", *what) or "[]"))


def _networks(entries: list[dict[str, Any]]) -> Iterator[IPv4Network]:
    for entry in entries:
        for address in entry.get("addr_info", []):
            yield IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False)
        if entry.get("dst", "default") != "default":
            yield IPv4Network(entry["dst"], strict=False)


def _mentioned() -> Iterator[IPv4Network]:
    """Addresses beyond a router, which no route names: a subnet that hides them would cut this machine off."""
    files = (file for file in (Path("/etc/resolv.conf"), Path("/etc/hosts")) if file.exists())
    proxies = (value for name, value in os.environ.items() if "proxy" in name.lower())
    for text in (*(file.read_text(errors="replace") for file in files), *proxies):
        for address in _ADDRESS.findall(text):
            with contextlib.suppress(ValueError):  # 999.1.1.1 looks like one
                yield IPv4Network(address)
