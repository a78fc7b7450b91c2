"""Facts judged: everything about a host but its NPUs and what its image holds (npu). Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from openclaw_core.cluster.checks import MEMORY_BASE
from openclaw_core.cluster.host_checks.facts import EngineFacts, HostCheck, HostFacts, Interface
from openclaw_core.cluster.host_checks.versions import MACHINES
from openclaw_core.cluster.ports import RAY_PORTS, SERVICE_PORTS
from openclaw_core.config.cluster import ClusterConfig
from openclaw_core.config.schema import RunConfig
from openclaw_core.planning.disk import HostNeeds
from openclaw_core.planning.placement import Placement

CLOCK_LIMIT_S = 2.0
"""Logs and time-outs of several hosts are compared; more than this misleads."""
RAY_ROLES = ("head", "worker")
MB = 1_000_000
SHARED_FILE_SYSTEMS = {"nfs", "nfs4", "lustre", "ceph", "cifs", "smb2", "gpfs", "fuseblk", "glusterfs", "9p", "beegfs"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the run asks of its hosts."""

    config: RunConfig
    run_id: str
    code: str | None
    """Digest of the project's code that must be there; None where it is not known yet."""
    placement: Placement
    needs: Mapping[str, HostNeeds] | str
    """By host, or why they are not known."""

    @property
    def cluster(self) -> ClusterConfig:
        return self.config.cluster


def host_rows(facts: HostFacts, everyone: Sequence[HostFacts], asked: Asked) -> Iterator[HostCheck]:
    """Rows of one host; ``everyone``: all that could be looked at, for what must be the same."""
    yield HostCheck(facts.name, "ssh", f"{facts.config.user}@{facts.config.reached_at} port {facts.config.port}", True)
    yield from _clock(facts, everyone, asked)
    yield from _engine(facts, everyone, asked)
    yield _work_root(facts)
    yield _disk(facts, asked)
    yield _memory(facts, asked)
    yield from _ports(facts, asked)
    yield _interface(facts)
    yield _peers(facts)
    if asked.code is not None:
        yield _code(facts, asked.code)
    yield from _model(facts, everyone, asked)


def is_alive(facts: HostFacts, run_id: str) -> bool:
    """Whether Ray of the run is running there: its ports, memory and NPUs are then in use by itself."""
    return isinstance(facts.engine, EngineFacts) and any(
        each.run == run_id and each.role in RAY_ROLES and each.alive for each in facts.engine.containers
    )


def _clock(facts: HostFacts, everyone: Sequence[HostFacts], asked: Asked) -> Iterator[HostCheck]:
    own = facts.clock
    value = f"{own.offset_s:+.2f} s to this machine, known to {own.error_s:.2f} s"
    others = [other for other in everyone if other.name == asked.cluster.head.name and other is not facts]
    apart = [("this machine", abs(own.offset_s) - own.error_s)]
    apart += [(each.name, abs(own.offset_s - each.clock.offset_s) - own.error_s - each.clock.error_s) for each in others]
    whom, seconds = max(apart, key=lambda pair: pair[1])
    if seconds > CLOCK_LIMIT_S:
        advice = (
            f"at least {seconds:.1f} s from {whom}, {CLOCK_LIMIT_S:g} s is the most: set it with chrony or ntpd on all hosts"
        )
        yield HostCheck(facts.name, "clock", value, False, advice)
    elif own.error_s > CLOCK_LIMIT_S:
        advice = "the answer takes too long to tell the time by it; look at the network and at the host's load"
        yield HostCheck(facts.name, "clock", value, False, advice)
    else:
        yield HostCheck(facts.name, "clock", value, True)


def _engine(facts: HostFacts, everyone: Sequence[HostFacts], asked: Asked) -> Iterator[HostCheck]:
    host, engine = facts.name, facts.engine
    if not isinstance(engine, EngineFacts):
        socket = facts.config.docker_socket
        advice = (
            f"start Docker there (systemctl start docker), or set docker_socket of {host}; {facts.config.user} must have rights"
        )
        yield HostCheck(host, "docker", f"no answer at {socket}: {engine}", False, advice)
        return
    yield HostCheck(host, "docker", engine.version, True)
    yield from _image(facts, engine, everyone, asked)
    for each in engine.containers:
        if each.run != asked.run_id:
            advice = f"end it with: openclaw-rl stop {each.run}, or take another host"
            yield HostCheck(host, "another run", f"{each.run} has {each.name} here, {each.state}", False, advice)


def _image(facts: HostFacts, engine: EngineFacts, everyone: Sequence[HostFacts], asked: Asked) -> Iterator[HostCheck]:
    name, image = asked.cluster.image, engine.image
    if image is None:
        yield HostCheck(facts.name, "image", f"{name} is not there", False, "run the stages build-image and distribute-image")
        return
    value = f"{name} {_short(image.id)} for {image.architecture}"
    machine = MACHINES.get(facts.machine, facts.machine)
    if image.architecture != machine:
        advice = f"the host is {facts.machine}: build the image on a host of that kind (cluster.build.host)"
        yield HostCheck(facts.name, "image", value, False, advice)
        return
    reference = _first_image(everyone)
    if reference is not None and reference[1] != image.id:
        advice = f"{reference[0]} has {_short(reference[1])}: run distribute-image, all hosts must have the same"
        yield HostCheck(facts.name, "image", value, False, advice)
        return
    yield HostCheck(facts.name, "image", value, True)


def _first_image(everyone: Sequence[HostFacts]) -> tuple[str, str] | None:
    images = ((each.name, each.engine.image) for each in everyone if isinstance(each.engine, EngineFacts))
    return next(((name, image.id) for name, image in images if image is not None), None)


def _short(image_id: str) -> str:
    return image_id.removeprefix("sha256:")[:12]


def _work_root(facts: HostFacts) -> HostCheck:
    disk, root = facts.disk, str(facts.config.work_root)
    value = f"{root} on {disk.file_system}" + ("" if disk.place == root else f", to be made below {disk.place}")
    if disk.refused is not None:
        advice = f"let {facts.config.user} write there, or choose another work_root: {disk.refused}"
        return HostCheck(facts.name, "work_root", value, False, advice)
    alone = "each host needs a disk of its own: hosts that share one overwrite each other's files"
    if facts.shared_with:
        return HostCheck(facts.name, "work_root", f"{value}, shared with {', '.join(facts.shared_with)}", True, alone)
    if disk.file_system in SHARED_FILE_SYSTEMS:
        return HostCheck(facts.name, "work_root", f"{value}, which is a network's", True, alone)
    return HostCheck(facts.name, "work_root", value, True)


def _disk(facts: HostFacts, asked: Asked) -> HostCheck:
    free = f"{facts.disk.free / 1e9:,.1f} GB free at {facts.disk.place}"
    if isinstance(asked.needs, str):
        return HostCheck(facts.name, "disk", free, True, f"what the run needs is not known: {asked.needs}")
    need = asked.needs[facts.name]
    missing = max(0, need.total - facts.disk.present)
    value = f"{free}, {missing / 1e9:,.1f} GB still needed of {need.total / 1e9:,.1f}"
    parts = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in need.items.items() if size is not None)
    advice = f"make room ({parts}), lower train.keep_last, or choose another work_root"
    return HostCheck(facts.name, "disk", value, facts.disk.free >= missing, "" if facts.disk.free >= missing else advice)


def _memory(facts: HostFacts, asked: Asked) -> HostCheck:
    saving = 0 if isinstance(asked.needs, str) else asked.needs[facts.name].save_memory
    needed = MEMORY_BASE + asked.cluster.ray_object_store_mb * MB + saving
    alive = is_alive(facts, asked.run_id)
    have = facts.memory if alive else facts.available
    value = f"{have / 1e9:,.1f} GB {'in all' if alive else 'available'}, {needed / 1e9:,.1f} GB needed, {facts.cores} cores"
    advice = "end what else runs there, or lower cluster.ray_object_store_mb"
    return HostCheck(facts.name, "memory", value, have >= needed, "" if have >= needed else advice)


def _ports(facts: HostFacts, asked: Asked) -> Iterator[HostCheck]:
    wanted = dict(_wanted_ports(facts.name, asked))
    if not wanted:
        return
    if is_alive(facts, asked.run_id):
        yield HostCheck(facts.name, "ports", "in use by this run, which is alive", True)
        return
    taken = {port: setting for port, setting in wanted.items() if port in facts.listening}
    for port, setting in taken.items():
        advice = f"end what listens there (ss -ltnp 'sport = :{port}' on {facts.name}), or choose another with {setting}"
        yield HostCheck(facts.name, "ports", f"{port} ({setting}) is taken", False, advice)
    if not taken:
        yield HostCheck(facts.name, "ports", f"{', '.join(map(str, sorted(wanted)))} are free", True)


def _wanted_ports(host: str, asked: Asked) -> Iterator[tuple[int, str]]:
    config = asked.config
    if host == asked.cluster.head.name:
        for name in (*SERVICE_PORTS, *RAY_PORTS):
            yield getattr(config.ports, name), f"ports.{name}"
    if config.engine.backend == "sglang":
        for index, at in enumerate(asked.placement.engine.hosts):
            if at == host:
                yield config.engine.sglang.port + index, "engine.sglang.port"
    if config.judge_servers and host in {each.name for each in asked.cluster.with_role("prm")}:
        yield config.judge.server.port, "judge.server.port"


def _interface(facts: HostFacts) -> HostCheck:
    host, named = facts.name, facts.config.interface
    addresses = _own_addresses(facts)
    there = ", ".join(each.name for each in facts.interfaces)
    if facts.resolved == () or any(ip_address(each).is_loopback for each in addresses):
        value = f"its own address {facts.config.reached_at} is {', '.join(addresses) or 'not resolved'} there"
        advice = "give the name its real address in that host's /etc/hosts, or set address to an IP; loopback reaches nobody"
        return HostCheck(host, "interface", value, False, advice)
    bearing = _bearing(facts, addresses)
    if named is None:
        if bearing is None:
            value = f"none of {there} has {', '.join(addresses) or facts.config.reached_at}"
            return HostCheck(host, "interface", value, False, f"set interface of {host} to the one for HCCL and gloo")
        return _up(host, bearing)
    found = next((each for each in facts.interfaces if each.name == named), None)
    if found is None:
        return HostCheck(host, "interface", f"there is no {named}", False, f"set interface of {host} to one of {there}")
    row = _up(host, found)
    if row.ok and bearing is not found:
        return HostCheck(host, "interface", row.value, True, f"{facts.config.reached_at} is not an address of {named}")
    return row


def _own_addresses(facts: HostFacts) -> tuple[str, ...]:
    try:
        return (str(ip_address(facts.config.reached_at)),)
    except ValueError:
        return facts.resolved or ()


def _bearing(facts: HostFacts, addresses: Sequence[str]) -> Interface | None:
    return next((each for each in facts.interfaces if set(addresses) & set(each.addresses)), None)


def _up(host: str, interface: Interface) -> HostCheck:
    shown = [each for each in interface.addresses if not ip_address(each).is_link_local] or ["without address"]
    value = f"{interface.name} {', '.join(shown)}, {'up' if interface.up else 'down'}"
    advice = "" if interface.up else f"bring it up: ip link set {interface.name} up"
    return HostCheck(host, "interface", value, interface.up, advice)


def _peers(facts: HostFacts) -> HostCheck:
    lost = [peer for peer in facts.peers if peer.problem is not None]
    if not facts.peers:
        return HostCheck(facts.name, "other hosts", "none", True)
    if lost:
        value = "; ".join(f"{peer.name}: {peer.problem}" for peer in lost)
        advice = "names must resolve and addresses be routed between all hosts: look at /etc/hosts, routes and firewall there"
        return HostCheck(facts.name, "other hosts", value, False, advice)
    return HostCheck(facts.name, "other hosts", f"{', '.join(peer.name for peer in facts.peers)} answer", True)


def _code(facts: HostFacts, code: str) -> HostCheck:
    value = "none of it is there" if facts.code is None else facts.code[:12]
    advice = f"wanted is {code[:12]}: push the code again, which launch-ray does"
    return HostCheck(facts.name, "code", value, facts.code == code, "" if facts.code == code else advice)


def _model(facts: HostFacts, everyone: Sequence[HostFacts], asked: Asked) -> Iterator[HostCheck]:
    roles = [role for role in (*asked.placement.roles, asked.placement.judge) if role is not None]
    own_judge = asked.config.judge_model == asked.config.model.name
    if not any(role.ranks_on(facts.name) and (role.name != "judge" or own_judge) for role in roles):
        return
    name = asked.config.model.name
    if asked.config.model.source.startswith("file://"):
        return  # a directory that an operator put there has no record of its files; download-model has compared the copies
    if facts.model is None:
        if asked.code is None:
            yield HostCheck(facts.name, "model", f"{name} is not there yet; download-model will bring it", True)
        else:
            yield HostCheck(facts.name, "model", f"{name} is not there", False, "run the stage download-model")
        return
    reference = next(each for each in everyone if each.model is not None)
    same = reference.model == facts.model
    advice = (
        "" if same else f"{reference.name} has other files: remove models/{name} below work_root on one and run download-model"
    )
    yield HostCheck(facts.name, "model", f"{name}, files {facts.model[:12]}", same, advice)
