"""The command line and the environment of one SGLang server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_core.config.schema import RunConfig
from openclaw_core.config.serving import SGLangConfig
from openclaw_core.engines.protocol import EngineError

LAUNCHER = (sys.executable, "-m", "sglang.launch_server")

BACKENDS = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}
"""Of the broadcast group, by the server's device."""

_SPARE = 8
"""Positions that SGLang keeps for itself: it takes prompts up to six short of its context length, cuts answers two short of
it, and 0.5.10 refuses a request that fills it exactly. Without them the longest requests that the gateway admits would fail."""

_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}

_ATTENTION = {"npu": "ascend", "cpu": "torch_native"}
"""cuda: the server's own choice. cpu: its default needs AMX."""

_UNSET = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Expandable segments are for trainers; SGLang's memory pool does not stand them."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """``arguments`` with the program first; ``environment`` is laid over the parent's."""

    arguments: tuple[str, ...]
    environment: dict[str, str]


def server_command(
    config: RunConfig,
    directory: Path,
    *,
    index: int = 0,
    version: int = 0,
    host: str = "127.0.0.1",
    launcher: Sequence[str] = LAUNCHER,
) -> ServerCommand:
    """For engine ``index`` of a run with the model in ``directory``, whose weights are version ``version``.

    Raises EngineError where the model's own limit leaves no room for ``model.context_length``.
    """
    sglang = config.engine.sglang
    on_host = index % sglang.engines_on_host if sglang.engines_on_host else index  # hosts are filled one after the other
    arguments = [
        *("env", *(part for name in _UNSET for part in ("-u", name)), *launcher),
        *("--model-path", str(directory)),
        *("--served-model-name", config.model.name),
        *("--host", host),
        *("--port", str(sglang.port + index)),
        *("--device", sglang.device),
        *("--tp-size", str(sglang.tensor_parallel)),
        *("--base-gpu-id", str(sglang.base_gpu_id + on_host * sglang.tensor_parallel)),
        *("--dtype", _DTYPES[config.engine.dtype]),
        *("--context-length", str(_context_length(config, directory))),
        *("--mem-fraction-static", f"{sglang.mem_fraction_static:g}"),
        *("--max-queued-requests", str(sglang.max_queued_requests)),
        # What a request leaves out must not come from the model's generation_config; the client leaves nothing out.
        *("--sampling-defaults", "openai"),
        *("--weight-version", str(version)),
        "--incremental-streaming-output",
    ]
    if attention := sglang.attention_backend or _ATTENTION.get(sglang.device):
        arguments += ["--attention-backend", attention]
    if page_size := sglang.page_size or (128 if sglang.device == "npu" else None):
        arguments += ["--page-size", str(page_size)]
    if sglang.fp32_lm_head:
        arguments += ["--enable-fp32-lm-head"]
    if sglang.device == "cpu":
        arguments += ["--disable-overlap-schedule"]
    return ServerCommand((*arguments, *sglang.extra_args), _environment(sglang))


def _environment(sglang: SGLangConfig) -> dict[str, str]:
    devices = ",".join(str(device) for device in sglang.devices)
    environment: dict[str, str] = {}
    if sglang.device == "npu":
        environment |= {
            # Several processes share a card: without ranges of their own they take each other's ports.
            "HCCL_HOST_SOCKET_PORT_RANGE": "60000-60050",
            "HCCL_NPU_SOCKET_PORT_RANGE": "61000-61050",
            "HCCL_CONNECT_TIMEOUT": "600",
            "HCCL_EXEC_TIMEOUT": "1800",
            "HCCL_OP_EXPANSION_MODE": "AIV",
            "STREAMS_PER_DEVICE": "32",
            "SGLANG_SET_CPU_AFFINITY": "1",
            # The layout that SGLang casts weights to once, at loading, does not survive an update in place.
            "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT": "1",
        }
    if sglang.device == "cpu":
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
    if devices:
        environment["ASCEND_RT_VISIBLE_DEVICES" if sglang.device == "npu" else "CUDA_VISIBLE_DEVICES"] = devices
    if sglang.network_interface:
        environment["GLOO_SOCKET_IFNAME"] = sglang.network_interface
        environment["HCCL_SOCKET_IFNAME" if sglang.device == "npu" else "NCCL_SOCKET_IFNAME"] = sglang.network_interface
    return environment | sglang.environment


def _context_length(config: RunConfig, directory: Path) -> int:
    wanted, file = config.model.context_length, directory / "config.json"
    try:
        limit = int(json.loads(file.read_text())["max_position_embeddings"])
    except (OSError, ValueError, KeyError) as error:
        raise EngineError(
            f"{file} states no max_position_embeddings ({error!r}); give the model's complete directory"
        ) from None
    if limit < wanted + _SPARE:
        raise EngineError(
            f"model.context_length={wanted} leaves SGLang not the {_SPARE} positions that it needs for itself: the model has "
            f"{limit}; set it to {limit - _SPARE} at most"
        )
    return wanted + _SPARE
