"""Facts judged: a host's NPUs, their driver, and what the image brings for them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from openclaw_core.cluster.host_checks.facts import HostCheck, HostFacts, Inside
from openclaw_core.cluster.host_checks.rows import Asked
from openclaw_core.cluster.host_checks.versions import CANN, DRIVER, GENERATION, MODULES, PACKAGES, driver_is_enough
from openclaw_core.cluster.npu import Chip, Npus
from openclaw_core.cluster.specs import CODE
from openclaw_core.config.cluster import RoleName

IDLE_HBM_MB = 4096
"""What a chip may show in use that no process of this run has. With nothing running a 910B shows about 3,400 of 65,536."""
TOLERATED_HEALTH = {"Warning"}
"""Works on, as with a high temperature: shown, and no reason to refuse. Alarm, Critical and UNKNOWN are."""


def npu_rows(facts: HostFacts, asked: Asked) -> Iterator[HostCheck]:
    """The NPUs that the run takes: numbers 0 to npus - 1. Others of the host may do what they like."""
    if facts.npus is None:
        return
    if isinstance(facts.npus, str):
        advice = f"make `npu-smi info` work on {facts.name} as {facts.config.user}, or set npus of {facts.name} to 0"
        yield HostCheck(facts.name, "npu", facts.npus, False, advice)
        return
    used = [chip for chip in facts.npus.chips if chip.device < facts.config.npus]
    yield _kind(facts, facts.npus, len(used))
    yield _driver(facts, facts.npus)
    yield from _health(facts, used)
    yield from _memory(facts, used, asked)
    yield from _processes(facts, asked)


def _kind(facts: HostFacts, npus: Npus, used: int) -> HostCheck:
    value = f"{len(npus.chips)} x {npus.chips[0].name} ({npus.generation}), npu-smi {npus.tool}"
    if used < facts.config.npus:
        advice = (
            f"cluster.hosts says {facts.config.npus}, and {used} of them are there: correct npus, or look at dmesg for the rest"
        )
        return HostCheck(facts.name, "npu", value, False, advice)
    if npus.generation != GENERATION:
        advice = f"the image is for Atlas {GENERATION} (910b); this host needs one on another base: docs/IMAGE.md"
        return HostCheck(facts.name, "npu", value, False, advice)
    return HostCheck(facts.name, "npu", value, True)


def _driver(facts: HostFacts, npus: Npus) -> HostCheck:
    version = facts.driver or npus.driver
    if driver_is_enough(version):
        return HostCheck(facts.name, "driver", version, True)
    least = ".".join(map(str, DRIVER))
    return HostCheck(facts.name, "driver", version, False, f"install driver and firmware {least} or newer, for CANN {CANN}")


def _health(facts: HostFacts, used: list[Chip]) -> Iterator[HostCheck]:
    sick = [chip for chip in used if chip.health != "OK"]
    for chip in sick:
        advice = f"npu-smi info -t health -i {chip.card} says more; reset or replace it, or leave it out"
        ok = chip.health in TOLERATED_HEALTH
        yield HostCheck(facts.name, "npu health", f"NPU {chip.device}: {chip.health}", ok, advice)
    if not sick:
        yield HostCheck(facts.name, "npu health", f"{len(used)} are OK", True)


def _memory(facts: HostFacts, used: list[Chip], asked: Asked) -> Iterator[HostCheck]:
    own = {holder.pid for holder in facts.holders if holder.run == asked.run_id}
    free = 0
    for chip in used:
        ours = sum(process.mb for process in chip.processes if process.pid in own)
        if chip.hbm_used_mb is None:
            advice = "a chip that does not tell its memory is not fit for use; look at its health"
            yield HostCheck(facts.name, "npu memory", f"NPU {chip.device}: not told", False, advice)
        elif chip.hbm_used_mb - ours > IDLE_HBM_MB:
            value = f"NPU {chip.device}: {chip.hbm_used_mb:,} of {chip.hbm_total_mb or 0:,} MB in use"
            advice = f"end what holds it (idle is below {IDLE_HBM_MB:,} MB); with no process shown, its memory leaked: reset it"
            yield HostCheck(facts.name, "npu memory", value, False, advice)
        else:
            free += 1
    if free == len(used):
        most = max((chip.hbm_used_mb or 0 for chip in used), default=0)
        yield HostCheck(facts.name, "npu memory", f"at most {most:,} MB in use", True)


def _processes(facts: HostFacts, asked: Asked) -> Iterator[HostCheck]:
    """Those on the run's NPUs that are not in a container of it."""
    mine = range(facts.config.npus)
    on_ours = [holder for holder in facts.holders if any(device in mine for device in holder.devices)]
    foreign = [holder for holder in on_ours if holder.run != asked.run_id]
    for holder in foreign:
        if holder.run is not None:
            advice = f"end it with: openclaw-rl stop {holder.run}"
        elif holder.owner is not None:
            advice = f"not of this project: whoever owns container {holder.owner.name} must stop it, or take other NPUs"
        else:
            advice = "not of this project, or left behind: whoever started it must end it, or take other NPUs"
        yield HostCheck(facts.name, "npu processes", str(holder), False, advice)
    if not foreign:
        own = f"{len(on_ours)} of this run" if on_ours else "none"
        yield HostCheck(facts.name, "npu processes", own, True)


def inside_rows(facts: HostFacts, asked: Asked) -> Iterator[HostCheck]:
    """What a container of the image finds. Versions are compared where there are NPUs: the image is for them."""
    if facts.inside is None:
        return
    if isinstance(facts.inside, str):
        advice = f"a container of the image must start on {facts.name}: look at cluster.mounts, cluster.python and its devices"
        yield HostCheck(facts.name, "container", facts.inside, False, advice)
        return
    yield from _modules(facts, facts.inside, asked)
    if facts.config.npus:
        yield from _stack(facts, facts.inside)
        yield _devices(facts, facts.inside)


def _modules(facts: HostFacts, inside: Inside, asked: Asked) -> Iterator[HostCheck]:
    for name in _needed_modules(facts, asked):
        found = inside.modules[name]
        if found.path is None:
            yield HostCheck(facts.name, name, "cannot be imported", False, "build the image anew: docs/IMAGE.md")
            continue
        commit = f", commit {found.commit[:12]}" if found.commit else ""
        value = f"{found.path}, {found.version or 'no version'}{commit}"
        wanted = _wanted(name, found.version, found.commit) if facts.config.npus else ""
        if name == "openclaw_core" and asked.code is not None and str(CODE / asked.code) not in found.path:
            wanted = f"wanted is the pushed code in {CODE / asked.code}: something in PYTHONPATH comes before it"
        yield HostCheck(facts.name, name, value, not wanted, wanted)


def _needed_modules(facts: HostFacts, asked: Asked) -> Iterator[str]:
    def has(*roles: RoleName) -> bool:
        return bool(set(roles) & set(facts.config.roles))

    if asked.code is not None:
        yield "openclaw_core"
    if has("train", "teacher"):
        yield "megatron.core"
        if facts.config.npus:
            yield "mindspeed"
    rollout, judge = asked.config.engine.backend == "sglang", asked.config.judge_servers
    if (rollout and has("rollout")) or (judge and has("prm") and facts.config.npus):
        yield "sglang"


def _wanted(name: str, version: str | None, commit: str | None) -> str:
    if name not in MODULES:
        return ""
    wanted_version, wanted_commit = MODULES[name]
    same = version == wanted_version and (wanted_commit is None or commit == wanted_commit)
    told = f"{wanted_version}" + (f", commit {wanted_commit[:12]}" if wanted_commit else "")
    return "" if same else f"wanted is {told}: build the image anew"


def _stack(facts: HostFacts, inside: Inside) -> Iterator[HostCheck]:
    advice = f"wanted is {CANN}: build the image on the base of docs/IMAGE.md"
    fits = inside.cann == CANN
    yield HostCheck(facts.name, "CANN", inside.cann or "no version found in the image", fits, "" if fits else advice)
    for package, wanted in PACKAGES.items():
        found = inside.packages.get(package)
        fits = (found or "").partition("+")[0] == wanted
        advice = f"wanted is {wanted}: build the image anew"
        yield HostCheck(facts.name, package, found or "not installed", fits, "" if fits else advice)


def _devices(facts: HostFacts, inside: Inside) -> HostCheck:
    wanted = facts.config.npus
    if inside.devices is None:
        advice = "torch_npu must see the NPUs in a container: driver mounted, set_env.sh sourced (docs/IMAGE.md)"
        return HostCheck(facts.name, "torch_npu devices", inside.problem or "not counted", False, advice)
    advice = "" if inside.devices == wanted else f"wanted is {wanted}: look at /dev/davinci* and at npus in cluster.hosts"
    return HostCheck(facts.name, "torch_npu devices", str(inside.devices), not advice, advice)
