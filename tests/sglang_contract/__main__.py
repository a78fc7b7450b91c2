"""Serve the contract: ``python -m tests.sglang_contract --contract 0.5.10 <SGLang's own flags>``.

Takes every flag that the version's parser was recorded with and refuses any other, as that parser does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.sglang_contract.contract import VERSIONS, Contract

_TYPES: dict[Any, Any] = {"int": int, "float": float, "human_readable_int": int}


def parser(contract: Contract) -> argparse.ArgumentParser:
    """SGLang's flags by their recorded names, choices and types."""
    made = argparse.ArgumentParser(prog="sglang", allow_abbrev=False)
    for name, flag in contract.facts["flags"].items():
        if flag["action"] is not None:
            made.add_argument(name, action="store_true")
        else:
            made.add_argument(name, type=_TYPES.get(flag["type"], str), choices=flag["choices"], nargs=flag["nargs"])
    return made


def with_config_file(arguments: list[str]) -> list[str]:
    """As SGLang does: what the file of ``--config`` says comes first, so that the command line wins."""
    if "--config" not in arguments:
        return arguments
    at = arguments.index("--config")
    said: dict[str, Any] = yaml.safe_load(Path(arguments[at + 1]).read_text())
    return [
        *(part for name, value in said.items() for part in (f"--{name}", str(value))),
        *arguments[:at],
        *arguments[at + 2 :],
    ]


def main() -> None:
    """Command line, as above; ``--step-s``: a pause between turns. ``--judges``: what it answers is a verdict."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--contract", choices=VERSIONS, required=True)
    own.add_argument("--step-s", type=float, default=0.0)
    own.add_argument("--judges", action="store_true")
    settings, rest = own.parse_known_args()
    contract = Contract.load(settings.contract)
    arguments = parser(contract).parse_args(with_config_file(rest))

    import torch
    import uvicorn

    from openclaw_core.gateway.rendering import ChatRenderer
    from tests.sglang_contract.app import ContractServer
    from tests.sglang_contract.frontend import Frontend
    from tests.sglang_contract.judging import JudgesLikeThis, like_a_judge
    from tests.sglang_contract.model import TinyModel
    from tests.sglang_contract.scheduler import Scheduler

    torch.set_num_threads(1)
    context_length = arguments.context_length or 2048
    shown = {
        "model_path": arguments.model_path,
        "weight_version": arguments.weight_version or "default",
        "tp_size": arguments.tp_size or 1,
        "dp_size": 1,
        "pp_size": 1,
        "grammar_backend": "none",
        "api_key": arguments.api_key,
    }
    directory = Path(arguments.model_path)
    judge: Any = JudgesLikeThis(ChatRenderer.from_pretrained(directory), like_a_judge) if settings.judges else None
    scheduler = Scheduler(
        judge or TinyModel(directory),
        context_length=context_length,
        max_running=arguments.max_running_requests or 16,
        max_queued=arguments.max_queued_requests,
        version=lambda: shown["weight_version"],
        step_s=settings.step_s,
    )
    frontend = Frontend(
        contract, scheduler, context_length=context_length, incremental=bool(arguments.incremental_streaming_output)
    )
    app = ContractServer(contract, frontend, shown).app()
    uvicorn.run(app, host=arguments.host or "127.0.0.1", port=arguments.port or 30000, log_level="warning")


if __name__ == "__main__":
    sys.exit(main())
