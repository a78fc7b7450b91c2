"""The command line and the environment of one SGLang server: an engine of the run, or its judge."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from openclaw_core.config.schema import RunConfig
from openclaw_core.config.serving import ServerConfig, SGLangConfig
from openclaw_core.engines.protocol import EngineError

LAUNCHER = (sys.executable, "-m", "sglang.launch_server")

LOOPBACK = "127.0.0.1"

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
class ServerKey:
    """What a server wants to see of whoever asks it. By file: a command line can be read by everyone on its host."""

    value: str = field(repr=False)
    file: PurePath

    @property
    def text(self) -> str:
        """Of the file, as SGLang's ``--config`` reads it."""
        return f"api-key: {self.value}\n"


@dataclass(frozen=True, slots=True)
class ServerAt:
    """Where one server is to listen and to compute."""

    address: str = LOOPBACK
    cards: tuple[int, ...] = ()
    """By their numbers on its host; empty: what its configuration says."""
    key: ServerKey | None = None
    """None: whoever reaches it may ask it."""

    def url(self, port: int) -> str:
        """Of a server at that port."""
        return f"http://[{self.address}]:{port}" if ":" in self.address else f"http://{self.address}:{port}"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """``arguments`` with the program first; ``environment`` is laid over the parent's."""

    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])


def engine_command(
    config: RunConfig,
    directory: PurePath,
    *,
    index: int = 0,
    version: int = 0,
    at: ServerAt | None = None,
    launcher: Sequence[str] = LAUNCHER,
) -> ServerCommand:
    """For engine ``index`` of a run with the model in ``directory``, whose weights are version ``version``."""
    sglang, at = config.engine.sglang, at or ServerAt()
    arguments = [
        *_arguments(sglang, directory, config.model.name, sglang.port + index, at, launcher),
        *("--tp-size", str(sglang.tensor_parallel)),
        *("--base-gpu-id", str(0 if at.cards else _first_card(sglang, index))),
        *("--dtype", _DTYPES[config.engine.dtype]),
        *("--context-length", str(config.model.context_length + _SPARE)),
        *("--weight-version", str(version)),
        "--incremental-streaming-output",
    ]
    if sglang.fp32_lm_head:
        arguments += ["--enable-fp32-lm-head"]
    return ServerCommand((*arguments, *sglang.extra_args), _environment(sglang, at.cards or sglang.devices))


def judge_command(
    config: RunConfig, directory: PurePath, *, at: ServerAt | None = None, launcher: Sequence[str] = LAUNCHER
) -> ServerCommand:
    """For a server of the judge with its model in ``directory``, on all of the cards that are its own."""
    server, at = config.judge.server, at or ServerAt()
    arguments = [
        *_arguments(server, directory, config.judge_model, server.port, at, launcher),
        *("--tp-size", str(len(at.cards) or 1)),
    ]
    if server.context_length is not None:
        arguments += ["--context-length", str(server.context_length)]
    return ServerCommand((*arguments, *server.extra_args), _environment(server, at.cards))


def _arguments(
    server: ServerConfig, directory: PurePath, name: str, port: int, at: ServerAt, launcher: Sequence[str]
) -> tuple[str, ...]:
    """What every server is given."""
    arguments = [
        *("env", *(part for name in _UNSET for part in ("-u", name)), *launcher),
        *(("--config", str(at.key.file)) if at.key is not None else ()),
        *("--model-path", str(directory)),
        *("--served-model-name", name),
        *("--host", at.address),
        *("--port", str(port)),
        *("--device", server.device),
        *("--mem-fraction-static", f"{server.mem_fraction_static:g}"),
        *("--max-queued-requests", str(server.max_queued_requests)),
        # What a request leaves out must not come from the model's generation_config; the client leaves nothing out.
        *("--sampling-defaults", "openai"),
    ]
    if attention := server.attention_backend or _ATTENTION.get(server.device):
        arguments += ["--attention-backend", attention]
    if page_size := server.page_size or (128 if server.device == "npu" else None):
        arguments += ["--page-size", str(page_size)]
    if server.device == "cpu":
        arguments += ["--disable-overlap-schedule"]
    return tuple(arguments)


def _first_card(sglang: SGLangConfig, index: int) -> int:
    """Hosts are filled one after the other."""
    on_host = index % sglang.engines_on_host if sglang.engines_on_host else index
    return sglang.base_gpu_id + on_host * sglang.tensor_parallel


def _environment(server: ServerConfig, cards: Sequence[int]) -> dict[str, str]:
    environment: dict[str, str] = {}
    if server.device == "npu":
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
    if server.device == "cpu":
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
    if cards:
        visible = "ASCEND_RT_VISIBLE_DEVICES" if server.device == "npu" else "CUDA_VISIBLE_DEVICES"
        environment[visible] = ",".join(map(str, cards))
    if server.network_interface:
        environment["GLOO_SOCKET_IFNAME"] = server.network_interface
        environment["HCCL_SOCKET_IFNAME" if server.device == "npu" else "NCCL_SOCKET_IFNAME"] = server.network_interface
    return environment | server.environment


def check_context_length(config: RunConfig, directory: Path) -> None:
    """Whether the model in ``directory`` has room for ``model.context_length``. Raises EngineError where it has not."""
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
