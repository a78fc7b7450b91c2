"""Which rank, engine and judge of a run is on which host and device, as rows for people."""

from __future__ import annotations

from collections.abc import Iterator

from openclaw_core.config import RunConfig
from openclaw_core.planning.placement import Role, place_ranks


def placement_table(config: RunConfig) -> list[dict[str, str]]:
    """A row for each copy of a role. Raises PlanError where there are too few NPUs."""
    placement = place_ranks(config)
    rows = [row for role in placement.roles for row in _copies(role)]
    if placement.scorer is None:
        rows.append(_row("scorer", "", "", "the trainer's ranks"))
    if placement.judge is not None:
        rows += _copies(placement.judge)
    else:
        where = ", ".join(config.judge.base_urls) or "in the service's process"
        rows.append(_row("judge", "", "", f"{config.judge.client}, {where}"))
    return [_row("service, gateway", "", config.cluster.head.name, "CPU"), *rows]


def _copies(role: Role) -> Iterator[dict[str, str]]:
    """As in trainer, 1 of 2, host a, NPU 2, 3 (TP 2)."""
    for i, host in enumerate(role.hosts):
        cards = ", ".join(map(str, role.cards[i])) if role.cards else ""
        split = f" (TP {role.ranks})" if role.ranks > 1 else ""
        yield _row(role.name, f"{i + 1} of {len(role.hosts)}", host, f"{f'NPU {cards}' if cards else 'CPU'}{split}")


def _row(role: str, copy: str, host: str, device: str) -> dict[str, str]:
    return {"role": role, "copy": copy, "host": host, "device": device}
