"""Which part of the loss teaches what: hybrid, GRPO alone, OPD alone and two variants, on the same problems and seeds.

Usage: python -m benchmarks.learning [--steps N] [--seeds 1 2 3] [--methods hybrid grpo …] [--only-table]

Every cell (method, seed) is a whole run of the preset local-cpu: held-out answers before, N steps, held-out answers after.
Cells that are in benchmarks/results/learning.jsonl with as many steps are not run again, and a cell that was interrupted is
resumed: end the command when you like and give it again. Cells of one seed differ in nothing but the method. Sessions to
convergence that more sessions would be needed to know count with the least that they can be, and are counted apart. The table
goes to stderr, JSON to stdout.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from openclaw_core.config import load_config
from openclaw_core.evaluation.results import run_results
from openclaw_core.weights.layout import hf_directory
from tests.ports import free_ports

RESULTS = Path(__file__).parent / "results" / "learning.jsonl"
RUNS = Path("runs/learning")
METHODS: Mapping[str, tuple[str, ...]] = {
    "hybrid": (),
    "grpo": ("loss.w_opd=0",),
    "opd": ("loss.w_rl=0",),
    "hybrid_random_hint": ("loss.hint_selection=random",),
    "hybrid_centered": ("loss.opd_center=true",),
}
PAPER = {"hybrid": 10.3, "grpo": 14.1, "opd": 29.7}
"""Sessions to convergence, joint average of three personas, Qwen3-4B-Thinking-2507 (arXiv 2603.10165v2, table 3)."""
PERSONAS = ("student", "ta", "teacher")


def run_cell(method: str, seed: int, steps: int) -> dict[str, Any]:
    """One run, from the start or from where it was interrupted; what it found."""
    name = f"{method}-{steps}-s{seed}"
    settings = [
        *METHODS[method],
        f"train.steps={steps}",
        *(f"{part}.seed={seed}" for part in ("train", "feeder", "evaluation")),
    ]
    settings += [f"paths.runs={RUNS.absolute()}", *ports(name)]
    command = [sys.executable, "-m", "openclaw_core.cli", "run", "--preset", "local-cpu", "--run-id", name]
    for setting in settings:
        command += ["--set", setting]
    RUNS.mkdir(parents=True, exist_ok=True)
    started = time.time()
    with (RUNS / f"{name}.log").open("a") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        sys.exit(
            f"{name} failed with exit code {code}; its output is in {RUNS / name}.log. Give the command again to resume it"
        )
    (result,) = run_results([RUNS / name])
    return {"method": method, "seed": seed, **result, **machine(started)}


def ports(name: str) -> list[str]:
    """Ports of its own, the same when a cell is resumed: they are part of a run's configuration."""
    stored = RUNS / name / "config.json"
    taken = json.loads(stored.read_text())["ports"] if stored.exists() else None
    return [f"{port}={taken[port.removeprefix('ports.')] if taken else number}" for port, number in free_ports().items()]


def machine(started: float) -> dict[str, Any]:
    """When, how long in all (an interrupted cell: since it was resumed) and on what."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), ":?")
    when = time.strftime("%Y-%m-%d", time.gmtime(started))
    return {"date": when, "whole_run_s": round(time.time() - started), "cpu": model.split(":")[1].strip()}


def known(steps: int) -> dict[tuple[str, int], dict[str, Any]]:
    """The cells that are there, by (method, seed)."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    cells = [json.loads(line) for line in lines]
    return {(cell["method"], cell["seed"]): cell for cell in cells if cell["steps"] == steps}


def summarise(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One method over its seeds: (mean, spread over seeds), the spread only where there are several."""

    def over(values: Iterable[float]) -> tuple[float, float | None]:
        listed = list(values)
        return round(fmean(listed), 3), round(stdev(listed), 3) if len(listed) > 1 else None

    def sessions(persona: str) -> Iterable[int]:
        return (cell["sessions"][persona]["at_least"] for cell in cells)

    def joint(cell: Mapping[str, Any]) -> float:
        return fmean(cell["sessions"][persona]["at_least"] for persona in PERSONAS)

    open_ended = [name for cell in cells for name in PERSONAS if cell["sessions"][name]["state"] != "converged"]
    return {
        "seeds": [cell["seed"] for cell in cells],
        "satisfied": {when: over(cell["satisfied"][when] for cell in cells) for when in ("before", "after", "difference")},
        "by_persona": {name: over(cell["satisfied_by_persona"][name]["after"] for cell in cells) for name in PERSONAS},
        "relevant_difference": over(cell["relevant"]["difference"] for cell in cells),
        "truncated": {when: over(cell["truncated"][when] for cell in cells) for when in ("before", "after")},
        "entropy": {when: over(cell["entropy"][when] for cell in cells) for when in ("first", "last")},
        "sessions": {**{name: over(sessions(name)) for name in PERSONAS}, "joint": over(joint(cell) for cell in cells)},
        "not_converged": f"{len(open_ended)} of {len(cells) * len(PERSONAS)}",
    }


def main() -> None:
    """Run what is missing, seed by seed so that every method has the first seed first, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--only-table", action="store_true", help="of the cells that are there")
    arguments = parser.parse_args()
    if not hf_directory(load_config("local-cpu")).exists():
        sys.exit("the model is not there; run `make run STEPS=1` first")
    cells = known(arguments.steps)
    wanted = [(method, seed) for seed in arguments.seeds for method in arguments.methods]
    for method, seed in wanted:
        if (method, seed) not in cells and not arguments.only_table:
            print(f"{method}, seed {seed}: running", file=sys.stderr, flush=True)
            cells[method, seed] = run_cell(method, seed, arguments.steps)
            RESULTS.parent.mkdir(exist_ok=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps(cells[method, seed]) + "\n")
    table = {
        method: {**summarise(there), "paper_sessions": PAPER.get(method)}
        for method in arguments.methods
        if (there := [cells[cell] for cell in wanted if cell[0] == method and cell in cells])
    }
    for method, row in table.items():
        print(f"{method:20} {row}", file=sys.stderr)
    print(json.dumps({"benchmark": "learning", "steps": arguments.steps, "methods": table}))


if __name__ == "__main__":
    main()
