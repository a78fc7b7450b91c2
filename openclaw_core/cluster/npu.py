"""The NPUs of a host, as ``npu-smi info`` shows them.

The table's columns move with the tool's version and the card, so nothing is read by its position in a line: rows are split
at ``|``, and what is not understood is an error that shows the line. An empty result would read as "nothing runs here".

Read from public captures of the versions 23 to 26; no NPU has been asked by this code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, HostError

Generation = Literal["A2", "A3", "A5", "other"]

NPU_SMI = ("npu-smi", "/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi")
"""Where it is looked for: a shell that ssh starts may have a shorter PATH than the operator's."""

DEADLINE_S = 60
"""npu-smi hangs where a card does not answer."""

# Of its two streams only stdout is the table; where it fails, the reason may be in either.
NPU_INFO = """
npu_info() {
    for smi in "$@"; do
        smi=$(command -v "$smi") || continue
        text=$(timeout "$deadline" "$smi" info 2>/dev/null </dev/null)
        code=$?
        [ "$code" -ne 0 ] && text=$(timeout "$deadline" "$smi" info 2>&1 </dev/null)
        printf '%s\\n' "$text"
        return "$code"
    done
    return 127
}
"""
"""Shell: prints the table; status 127 where there is no npu-smi. ``$deadline`` is in seconds."""

_VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)")
_IDLE = re.compile(r"No running processes found in NPU\s+(\d+)")
_PAIR = re.compile(r"(\d+|NA|-)\s*/\s*(\d+|NA|-)")


class NpuError(ClusterError):
    """npu-smi is missing, failed, or printed what is not understood; the message shows it."""


@dataclass(frozen=True, slots=True)
class NpuProcess:
    """A process that holds memory of a chip."""

    pid: int
    """The host's, also where npu-smi is called in a container."""
    name: str
    """Cut by npu-smi, and often empty."""
    mb: int


@dataclass(frozen=True, slots=True)
class Chip:
    """One device: a card of an A2 host has one, a card of an A3 host two."""

    card: int
    chip: int
    device: int
    """N of /dev/davinciN."""
    name: str
    health: str
    """OK, Warning, Alarm, Critical or UNKNOWN."""
    bus: str | None
    hbm_used_mb: int | None
    """Of all processes and the driver, which takes about 3,400 when nothing runs; None where the chip does not say."""
    hbm_total_mb: int | None
    processes: tuple[NpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Npus:
    """All chips of a host, in order."""

    tool: str
    driver: str
    chips: tuple[Chip, ...]

    @property
    def generation(self) -> Generation:
        """Of the first chip: a host has one kind."""
        return generation(self.chips[0].name)


def generation(name: str) -> Generation:
    """Which Atlas generation a chip's name is of; A2 are 910B1 to 910B4, A3 calls itself Ascend910."""
    short = name.removeprefix("Ascend")
    if re.match(r"910B\d", short):
        return "A2"
    if re.match(r"910(C|_93|$)", short):
        return "A3"
    return "A5" if short.startswith("950") else "other"


def read_npus(host: Host, places: Sequence[str] = NPU_SMI) -> Npus:
    """Ask a host. Raises HostError (unreachable), NpuError."""
    script = f'deadline={DEADLINE_S}\n{NPU_INFO}\nnpu_info "$@"\n'
    output = host.run("sh", "-s", "--", *places, input=script.encode(), timeout_s=2 * DEADLINE_S + 10, check=False)
    try:
        return npus_of(output.code, output.stdout, places)
    except NpuError as error:
        raise HostError(host.name, str(error)) from error


def npus_of(code: int, text: str, places: Sequence[str] = NPU_SMI) -> Npus:
    """What ``npu_info`` left behind. Raises NpuError."""
    if code == 127 and not text.strip():
        raise NpuError(f"there is no npu-smi (looked for {', '.join(places)}); install the Ascend driver")
    if code == 124:
        raise NpuError(f"npu-smi info did not end within {DEADLINE_S} s; a card may hang: look at dmesg and reset it")
    if code:
        raise NpuError(f"npu-smi info ended with status {code}: {text.strip()[-500:] or 'it said nothing'}")
    return parse_npus(text)


def parse_npus(text: str) -> Npus:
    """Parse ``npu-smi info``. Raises NpuError with the line that is not understood."""
    return _Parser().parse(text.splitlines())


@dataclass(slots=True)
class _Parser:
    """Line by line: title, the table of chips (two rows each), the table of processes."""

    versions: tuple[str, str] | None = None
    table: Literal["none", "chips", "processes"] = "none"
    upper: list[str] | None = None
    """The first row of a chip whose second has not come yet."""
    with_physical: bool = False
    memories: int = 1
    """Columns of the second row that are used/total; the last one is the HBM."""
    chips: list[Chip] = field(default_factory=list)
    processes: dict[tuple[int, int], list[NpuProcess]] = field(default_factory=dict)

    def parse(self, lines: Iterable[str]) -> Npus:
        last = ""
        for line in lines:
            if line.strip():
                self._line(line)
                last = line
        if self.versions is None:
            raise NpuError("npu-smi info printed no version; its first line must be like '| npu-smi 25.2.0  Version: 25.2.0 |'")
        if not self.chips or self.table != "processes" or not last.lstrip().startswith("+"):
            raise NpuError(f"npu-smi info is cut off: {len(self.chips)} chips, and its last line is {last.strip()!r}")
        known = {(chip.card, chip.chip) for chip in self.chips}
        if unknown := sorted(set(self.processes) - known):
            raise NpuError(f"npu-smi info shows processes on NPU {unknown[0][0]} chip {unknown[0][1]}, which it does not list")
        return Npus(*self.versions, tuple(self._with_processes(chip) for chip in self.chips))

    def _line(self, line: str) -> None:
        text = line.strip()
        if text.startswith("+") and not text.strip("+-="):
            return
        if not (text.startswith("|") and text.endswith("|") and len(text) > 1):
            raise _not_understood(line)
        cells = [cell.strip() for cell in text[1:-1].split("|")]
        if found := _VERSION.search(text):
            self.versions = (found[1], found[2])
        elif cells[0].startswith(("NPU", "Chip")) or _is_second_header(cells):
            self._header(cells, line)
        elif self.table == "chips":
            self._chip_row(cells, line)
        elif self.table == "processes":
            self._process_row(cells, line)
        else:
            raise _not_understood(line)

    def _header(self, cells: list[str], line: str) -> None:
        if self.upper is not None:
            raise _not_understood(line)
        if any(cell.lower() == "process id" for cell in cells):
            self.table = "processes"
        elif "Health" in cells:
            self.table = "chips"
        elif "Bus-Id" in cells and self.table == "chips":
            self.with_physical = "Phy-ID" in cells[0]
            self.memories = cells[-1].count("Usage(MB)")
        else:
            raise _not_understood(line)

    def _chip_row(self, cells: list[str], line: str) -> None:
        if len(cells) < 3:
            raise _not_understood(line)
        if self.upper is None:
            self.upper = cells
            return
        upper, self.upper = self.upper, None
        # Newer tools give id and name cells of their own: all but the last two are who it is.
        who, where = " ".join(upper[:-2]).split(), " ".join(cells[:-2]).split()
        pairs = _PAIR.findall(cells[-1])
        numbers = [int(word) for word in where if word.isdecimal()]
        if len(who) < 2 or not who[0].isdecimal() or len(numbers) != len(where) or len(pairs) != self.memories:
            raise _not_understood(line)
        card, chip = int(who[0]), numbers[0] if numbers else 0
        device = numbers[1] if self.with_physical and len(numbers) > 1 else card
        used, total = (_number(word) for word in pairs[-1])
        bus = None if cells[-2] in ("", "NA", "-") else cells[-2]
        self.chips.append(Chip(card, chip, device, " ".join(who[1:]), upper[-2], bus, used, total))

    def _process_row(self, cells: list[str], line: str) -> None:
        if len(cells) == 1 and _IDLE.search(cells[0]):
            return
        where = cells[0].split()
        if not (len(cells) >= 4 and where and all(word.isdecimal() for word in (*where, cells[1], cells[3]))):
            raise _not_understood(line)
        place = (int(where[0]), int(where[1]) if len(where) > 1 else 0)
        self.processes.setdefault(place, []).append(NpuProcess(int(cells[1]), cells[2], int(cells[3])))

    def _with_processes(self, chip: Chip) -> Chip:
        held = tuple(self.processes.get((chip.card, chip.chip), ()))
        return replace(chip, processes=held)


def processes_by_pid(chips: Iterable[Chip]) -> dict[int, list[tuple[Chip, NpuProcess]]]:
    """A process may hold memory of several chips."""
    found: dict[int, list[tuple[Chip, NpuProcess]]] = {}
    for chip, process in _pairs(chips):
        found.setdefault(process.pid, []).append((chip, process))
    return found


def _pairs(chips: Iterable[Chip]) -> Iterator[tuple[Chip, NpuProcess]]:
    return ((chip, process) for chip in chips for process in chip.processes)


def _is_second_header(cells: list[str]) -> bool:
    return "Bus-Id" in cells and not cells[0]


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else None


def _not_understood(line: str) -> NpuError:
    return NpuError(f"this line of npu-smi info is not understood: {line.strip()!r}")
