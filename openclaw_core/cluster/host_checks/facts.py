"""What is known of a host, as plain data: parsed from what its shell, its Docker engine and a container of the image say."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

from openclaw_core.cluster.docker.containers import Found
from openclaw_core.cluster.host_checks.script import NOT_THERE, Part, text_of
from openclaw_core.cluster.npu import NpuError, Npus, npus_of
from openclaw_core.cluster.orphans import Holder
from openclaw_core.config.cluster import HostConfig

LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""
KIB = 1024
DF = re.compile(r"\s\d+\s+\d+\s+(\d+)\s+(?:\d+%|-)\s")
"""Size, used, available, share: the third."""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """One row: what was looked at on which host, what was found, and what to do. ``ok`` with advice is a warning."""

    host: str
    check: str
    value: str
    ok: bool
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.host}: {self.check}: {self.value}" + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True, slots=True)
class Lost:
    """A host that could not be looked at, and why."""

    config: HostConfig
    reason: str
    reached: bool = False
    """SSH got through, and then something failed."""

    @property
    def name(self) -> str:
        return self.config.name


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a host's clock is ahead of the launch machine's. Seconds."""

    offset_s: float
    error_s: float
    """Half of the round trip: the true value is within offset ± error."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of work_root, or of its nearest parent that exists. Bytes."""

    place: str
    free: int
    file_system: str
    present: int
    """Of the run's model and of the run itself, what is there already."""
    refused: str | None
    """Why nothing can be written there."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface."""

    name: str
    up: bool
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another host's SSH port as seen from here."""

    name: str
    problem: str | None
    """None where an SSH server answered."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """The image as a host's engine has it."""

    id: str
    architecture: str
    """As Docker calls it: amd64, arm64."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """A host's Docker engine."""

    version: str
    image: ImageFacts | None
    containers: tuple[Found, ...]
    """Of any run."""


@dataclass(frozen=True, slots=True)
class Module:
    """Where an import would come from."""

    path: str | None
    version: str | None
    commit: str | None


@dataclass(frozen=True, slots=True)
class Inside:
    """What a container of the image finds on this host."""

    modules: dict[str, Module]
    packages: dict[str, str | None]
    cann: str | None
    devices: int | None
    """NPUs that torch_npu counts; None where it was not asked."""
    problem: str | None
    """Why they could not be counted."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Everything about one host. A string in place of facts says why there are none."""

    config: HostConfig
    machine: str
    cores: int
    memory: int
    """Bytes."""
    available: int
    disk: Disk
    listening: frozenset[int]
    interfaces: tuple[Interface, ...]
    resolved: tuple[str, ...] | None
    """Addresses that the host has for its own name; None where it cannot be asked."""
    peers: tuple[Peer, ...]
    clock: Clock
    model: str | None
    """Digest of the model's files; None where it is not there whole."""
    driver: str | None = None
    npus: Npus | str | None = None
    """None where the host has none by configuration."""
    holders: tuple[Holder, ...] = ()
    engine: EngineFacts | str = "not asked"
    inside: Inside | str | None = None
    """None where no container could be asked: no image."""
    code: str | None = None
    """Digest of the pushed code that is whole there."""
    shared_with: tuple[str, ...] = field(default=())
    """Other hosts whose file was seen in this one's work_root."""

    @property
    def name(self) -> str:
        return self.config.name


def parse_facts(config: HostConfig, parts: Mapping[str, Part], clock: Clock, npu_smi: Sequence[str]) -> HostFacts:
    """The script's part of the facts. Raises ValueError, KeyError or IndexError for what is not understood."""
    memory = _meminfo(parts["memory"].text)
    return HostFacts(
        config=config,
        machine=parts["machine"].text.strip(),
        cores=int(text_of(parts, "cores") or 0),
        memory=memory["MemTotal"],
        available=memory["MemAvailable"],
        disk=_disk(parts),
        listening=frozenset(port for name in ("tcp", "tcp6") for port in _listening(text_of(parts, name) or "")),
        interfaces=tuple(_interfaces(parts)),
        resolved=tuple((text_of(parts, "resolved") or "").split()) if parts["resolved"].code != NOT_THERE else None,
        peers=tuple(_peers(parts["peers"].text)),
        clock=clock,
        model=_model(text_of(parts, "model")),
        driver=_version(text_of(parts, "driver")),
        npus=_npus(parts.get("npus"), npu_smi),
    )


def _meminfo(text: str) -> dict[str, int]:
    fields = (line.partition(":") for line in text.splitlines())
    return {name: int(value.split()[0]) * KIB for name, _, value in fields if value.strip()}


def _disk(parts: Mapping[str, Part]) -> Disk:
    # The names of device and mount point around the numbers may hold blanks.
    numbers = DF.search(parts["disk"].text)
    if numbers is None:
        raise ValueError(f"df -Pk said {parts['disk'].text!r}")
    present = sum(int(line.split()[0]) * KIB for line in parts["present"].text.splitlines() if line[:1].isdigit())
    writable = parts["writable"]
    refused = None if writable.ok else writable.text.strip() or "no right to write"
    return Disk(parts["place"].text, int(numbers[1]) * KIB, text_of(parts, "file-system") or "unknown", present, refused)


def _listening(text: str) -> Iterator[int]:
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == LISTEN:
            yield int(fields[1].rpartition(":")[2], 16)


def _interfaces(parts: Mapping[str, Part]) -> Iterator[Interface]:
    if (links := text_of(parts, "links")) is not None:
        yield from _from_ip(links, text_of(parts, "addresses") or "")
    else:
        yield from _from_proc(*(text_of(parts, name) or "" for name in ("trie", "routes", "addresses6")))


def _from_ip(links: str, addresses: str) -> Iterator[Interface]:
    found: dict[str, list[str]] = {}
    for fields in (line.split() for line in addresses.splitlines()):
        if len(fields) > 3 and fields[2] in ("inet", "inet6"):
            found.setdefault(fields[1], []).append(fields[3].partition("/")[0])
    for fields in (line.split() for line in links.splitlines()):
        name, flags = fields[1].rstrip(":").partition("@")[0], fields[2].strip("<>").split(",")
        yield Interface(name, "UP" in flags, tuple(found.get(name, ())))


def _from_proc(trie: str, routes: str, addresses6: str) -> Iterator[Interface]:
    """Without ip: the host's addresses, each on the interface whose own network it is in. Only one that is up has a route."""
    networks = [
        (fields[0], ip_network((_little_endian(fields[1]), _little_endian(fields[7]).bit_count())))
        for fields in (line.split() for line in routes.splitlines()[1:])
        if len(fields) > 7 and fields[2] == "00000000" and fields[7] != "00000000"
    ]
    found: dict[str, list[str]] = {}
    previous = ""
    for line in trie.splitlines():
        if "host LOCAL" in line:
            address = previous.split()[-1]
            for name in {name for name, network in networks if ip_address(address) in network}:
                if address not in found.setdefault(name, []):
                    found[name].append(address)
        previous = line
    for fields in (line.split() for line in addresses6.splitlines()):
        if len(fields) == 6:
            found.setdefault(fields[5], []).append(str(ip_address(int(fields[0], 16).to_bytes(16, "big"))))
    for name, addresses in found.items():
        yield Interface(name, True, tuple(addresses))


def _little_endian(word: str) -> int:
    return int.from_bytes(bytes.fromhex(word), "little")


def _peers(text: str) -> Iterator[Peer]:
    for line in text.splitlines():
        name, code, said, addresses = line.split("\t")
        yield Peer(name, _peer_problem(code, said.strip(), addresses.split()))


def _peer_problem(code: str, said: str, addresses: Sequence[str]) -> str | None:
    if code != "0":
        return {"124": "no answer in time", str(NOT_THERE): "not asked: there is no bash on this host"}.get(code, said)
    if any(ip_address(each).is_loopback for each in addresses):
        return "its name is loopback on this host, which would answer itself"
    return None if said.startswith("SSH-") else f"something else than an SSH server answers: {said[:60]!r}"


def _model(marker: str | None) -> str | None:
    if marker is None:
        return None
    try:
        files: dict[str, Any] = json.loads(marker)["files"]
    except (ValueError, KeyError, TypeError):
        return "marker not understood"
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _version(text: str | None) -> str | None:
    """Of the driver's version.info, lines of name=value."""
    found = re.search(r"^Version=\s*(\S+)", text or "", re.MULTILINE)
    return found[1] if found else None


def _npus(part: Part | None, npu_smi: Sequence[str]) -> Npus | str | None:
    if part is None:
        return None
    try:
        return npus_of(part.code, part.text, npu_smi)
    except NpuError as error:
        return str(error)
