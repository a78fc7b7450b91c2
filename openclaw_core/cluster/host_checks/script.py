"""What a host is asked, in one command: a shell script that prints marked parts, and the parts by name.

A host has a POSIX shell, the coreutils and Docker, and nothing else for sure: no Python, no awk, maybe no ip, getent or bash.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openclaw_core.cluster.hosts import Host, HostError
from openclaw_core.cluster.npu import DEADLINE_S, NPU_INFO

PEER_S = 5
"""How long another host may take to answer."""
NOT_THERE = 127
"""Status of a part whose program the host does not have."""
DRIVER_FILE = "/usr/local/Ascend/driver/version.info"

_FUNCTIONS = """
part() {
    printf '%s begin %s\\n' "$mark" "$1"
    shift
    "$@" 2>&1
    printf '\\n%s end %s\\n' "$mark" "$?"
}
resolve() {
    command -v getent >/dev/null || return 127
    getent ahosts "$1" | cut -d ' ' -f 1 | sort -u
}
writable() {
    if [ "$place" = "$root" ]; then (umask 077 && : >"$root/.openclaw-check-$token-$name"); else [ -w "$place" ]; fi
}
present() {
    for each in "$root/models/$model" "$root/runs/$run"; do [ -d "$each" ] && du -sk "$each"; done
    return 0
}
peer() {
    command -v bash >/dev/null || { printf '%s\\t127\\t\\t\\n' "$1"; return; }
    said=$(timeout "$peer_s" bash -c 'exec 3<>"/dev/tcp/$0/$1" && IFS= read -r line <&3 && printf %s "$line"' "$2" "$3" 2>&1)
    code=$?
    printf '%s\\t%s\\t%s\\t%s\\n' "$1" "$code" "$(printf %s "$said" | tr '\\r\\n\\t' '   ')" "$(resolve "$2" | tr '\\n' ' ')"
}
peers() {
    # All at once, a line each: one that is away costs its deadline once.
    while [ $# -ge 3 ]; do peer "$1" "$2" "$3" & shift 3; done
    wait
}
"""

_MAIN = """
main() {
    mark=$1 token=$2 name=$3 address=$4 root=$5 run=$6 model=$7 npus=$8
    deadline=$9
    shift 9
    peer_s=$1 driver=$2 smi=$3
    shift 3
    place=$root
    while [ ! -d "$place" ]; do place=$(dirname "$place"); done
    part machine uname -m
    part cores nproc
    part memory cat /proc/meminfo
    part tcp cat /proc/net/tcp
    [ -r /proc/net/tcp6 ] && part tcp6 cat /proc/net/tcp6
    part place printf %s "$place"
    part disk df -Pk "$place"
    part file-system stat -f -c %T "$place"
    part writable writable
    part present present
    if command -v ip >/dev/null; then
        part links ip -o link show
        part addresses ip -o addr show
    else
        part trie cat /proc/net/fib_trie
        part routes cat /proc/net/route
        [ -r /proc/net/if_inet6 ] && part addresses6 cat /proc/net/if_inet6
    fi
    part resolved resolve "$address"
    [ -r "$root/models/$model/hf/_SUCCESS" ] && part model cat "$root/models/$model/hf/_SUCCESS"
    if [ "$npus" -gt 0 ]; then
        part driver cat "$driver"
        # Words of one argument: places where npu-smi may be.
        part npus npu_info $smi
    fi
    part peers peers "$@"
    part done true
}
main "$@" </dev/null
"""

_LOOK_FOR_TOKENS = """
for file in "$1/.openclaw-check-$2-"*; do [ -e "$file" ] && printf '%s\\n' "${file##*/.openclaw-check-"$2"-}"; done
exit 0
"""


@dataclass(frozen=True, slots=True)
class Part:
    """What one part printed, and its status."""

    text: str
    code: int

    @property
    def ok(self) -> bool:
        """Whether its command succeeded."""
        return self.code == 0


def ask(host: Host, *, run_id: str, model: str, token: str, peers: Sequence[Host], npu_smi: Sequence[str]) -> dict[str, Part]:
    """Run the script. Leaves a file ``.openclaw-check-<token>-<host>`` in work_root. Raises HostError."""
    mark = f"@@{secrets.token_hex(8)}"
    config = host.config
    words = [mark, token, host.name, config.reached_at, str(config.work_root), run_id, model, str(config.npus)]
    words += [str(DEADLINE_S), str(PEER_S), DRIVER_FILE, " ".join(npu_smi)]
    words += [word for peer in peers for word in (peer.name, peer.config.reached_at, str(peer.config.port))]
    script = NPU_INFO + _FUNCTIONS + _MAIN
    output = host.run("sh", "-s", "--", *words, input=script.encode(), check=False, timeout_s=2 * DEADLINE_S + 120)
    parts = split(output.stdout, mark)
    if "done" not in parts:
        said = (output.stderr.strip() or output.stdout.strip())[-500:]
        raise HostError(host.name, f"the check's script ended early, with status {output.code}: {said}")
    return parts


def split(text: str, mark: str) -> dict[str, Part]:
    """The parts of a script's output, by name; one that has no end is left out."""
    parts: dict[str, Part] = {}
    name, lines = "", list[str]()
    for line in text.splitlines():
        if line.startswith(f"{mark} begin "):
            name, lines = line.rpartition(" ")[2], []
        elif line.startswith(f"{mark} end "):
            parts[name] = Part("\n".join(lines).strip("\n"), int(line.rpartition(" ")[2]))
        else:
            lines.append(line)
    return parts


def tokens_on(host: Host, token: str) -> list[str]:
    """Names of the hosts that have left their file in this host's work_root, its own among them. Raises HostError."""
    output = host.run("sh", "-s", "--", str(host.work_root), token, input=_LOOK_FOR_TOKENS.encode())
    return output.stdout.split()


def remove_token(host: Host, token: str) -> None:
    """Remove the host's own file. Raises HostError."""
    host.run("rm", "-f", str(host.work_root / f".openclaw-check-{token}-{host.name}"))


def text_of(parts: Mapping[str, Part], name: str) -> str | None:
    """What a part printed; None where it is missing or failed."""
    part = parts.get(name)
    return part.text if part is not None and part.ok else None
