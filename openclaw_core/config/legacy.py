"""The environment names of the earlier scripts, and what each means today. docs/MIGRATION.md is this table for people.

Nothing of it is ignored in silence: a name sets parameters, or says something of the hosts, or is told to be as it always
is now, or is refused with what to do instead. An empty variable is none, as in the scripts' own ``${NAME:-default}``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from openclaw_core.config.known_names import OPENCLAW_CLI, OWN
from openclaw_core.config.load import ConfigError
from openclaw_core.config.schema import RunConfig

Reader = Callable[[str], str]
"""A variable's text → what the parameter is given. Raises ValueError saying what is wrong."""


@dataclass(frozen=True, slots=True)
class ClusterHints:
    """What the environment says of a cluster's hosts; None where it says nothing."""

    master_address: str | None = None
    """Of the host with the role train, which is Ray's head."""
    prm_address: str | None = None
    """Of the host with the role prm."""
    work_root: Path | None = None
    """The directory on every host below which everything is kept."""
    prm_npus: int | None = None
    """NPUs of the host with the role prm."""
    http_proxy: str | None = None
    https_proxy: str | None = None
    no_proxy: str | None = None
    """Comma-separated, as curl takes it; the addresses of the hosts are added."""


@dataclass(frozen=True, slots=True)
class Retired:
    """A name that no parameter answers to any more."""

    instead: str
    """What holds now, or what to do."""
    as_it_is: frozenset[str] | None = frozenset()
    """Values that ask for what is the case anyway; None: whatever it says, it is only told that it is not read."""


@dataclass(frozen=True, slots=True)
class Legacy:
    """What an environment says by those names."""

    parameters: dict[str, dict[str, Any]]
    """Variable → dotted name → value."""
    hints: ClusterHints
    shown: dict[str, str]
    """Variable → its value for people, of everything that was found but keys."""
    retired: tuple[str, ...]
    """Those that ask for what is the case anyway."""
    gateway_key: str | None
    """A key that clients of the gateway have."""

    @property
    def overrides(self) -> dict[str, Any]:
        """Dotted name → value."""
        return {name: value for values in self.parameters.values() for name, value in values.items()}


def _same(text: str) -> str:
    return text


def _directory(text: str) -> str:
    return str(Path(text).expanduser().absolute())


def _source(text: str) -> str:
    if re.match(r"(file|hf)://", text):
        return text
    path = Path(text).expanduser()
    if path.is_absolute() or path.is_dir():
        return f"file://{path.resolve()}"
    if re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", text):
        return f"hf://{text}"
    raise ValueError("it must be a directory in Hugging Face form, or <org>/<name> of the hub")


def _model_name(text: str) -> str:
    scheme, _, place = _source(text).partition("://")
    return Path(place.partition("@")[0] if scheme == "hf" else place).name


PARAMETERS: dict[str, dict[str, Reader]] = {
    "OPENCLAW_TOPK_K": {"loss.topk": _same},
    "OPENCLAW_TOPK_MAX_CAND": {"loss.max_candidates": _same},
    "OPENCLAW_TOPK_ADV_DIFF_CLIP": {"loss.adv_diff_clip": _same},
    "OPENCLAW_TOPK_W_RL": {"loss.w_rl": _same},
    "OPENCLAW_TOPK_W_OPD": {"loss.w_opd": _same},
    "OPENCLAW_TOPK_HINT_SELECTION": {"loss.hint_selection": _same},
    "OPENCLAW_TOPK_SUBSET_MODE": {"loss.subset_mode": _same},
    "OPENCLAW_TOPK_PPO_CLIP_EPS_LO": {"loss.eps_lo": _same},
    "OPENCLAW_TOPK_PPO_CLIP_EPS_HI": {"loss.eps_hi": _same},
    "KL_LOSS_COEF": {"loss.kl_coef": _same},
    "PRM_M": {"judge.votes": _same},
    "PRM_TEMPERATURE": {"judge.temperature": _same},
    "PRM_MAX_NEW_TOKENS": {"judge.max_tokens": _same},
    "ROLLOUT_BATCH_SIZE": {"rollout.batch_size": _same},
    "NUM_ROLLOUT": {"train.steps": _same},
    "ROLLOUT_TEMPERATURE": {"rollout.temperature": _same},
    "OPENCLAW_ROLLOUT_REP_PENALTY": {"rollout.repetition_penalty": _same},
    "CONTEXT_LENGTH": {"model.context_length": _same},
    "ROLLOUT_MAX_CONTEXT_LEN": {"model.context_length": _same},
    "HF_CKPT": {"model.source": _source, "model.name": _model_name},
    "SERVED_MODEL_NAME": {"model.served_name": _same},
    "SAVE_CKPT": {"paths.runs": _directory},
}
"""Variable → the parameters that it sets, with how its text is read."""

HINTS = {
    "MASTER_ADDR": "master_address",
    "PRM_NODE": "prm_address",
    "WORK_ROOT": "work_root",
    "PRM_GPUS": "prm_npus",
    "HTTP_PROXY": "http_proxy",
    "HTTPS_PROXY": "https_proxy",
    "NO_PROXY": "no_proxy",
}
"""Variable → field of ClusterHints; what they become: config/hosts.py. The proxies are read in small letters too, where the
large ones say nothing."""

KEYS = {
    "SGLANG_API_KEY": "one more key that the gateway takes",
    "ARK_API_KEY": "the key of the API that plays the people",
}
"""Variables that hold a key; never shown."""

RETIRED = {
    "TRAIN_EPOCHS": Retired(
        "every sample is trained once; train.steps_per_rollout=k makes k optimiser steps, each on a k-th of the batch",
        frozenset({"1"}),
    ),
    "REF_LOAD": Retired(
        "not read: policy and reference start from model.source, which the stage convert-checkpoint converts", None
    ),
    "OPENCLAW_EVAL_MODE": Retired(
        "the judge always gives the reward; without the reward's term: loss.w_rl=0", frozenset({"1"})
    ),
    "OPENCLAW_COMBINE_OPD_TEACHER_SOURCE": Retired(
        "the teacher is always computed by Megatron", frozenset({"megatron", "mcore"})
    ),
    "OPENCLAW_COMBINE_W_RL": Retired("it belongs to the token-level loss, which is not here; set loss.w_rl"),
    "OPENCLAW_COMBINE_W_OPD": Retired("it belongs to the token-level loss, which is not here; set loss.w_opd"),
    "OPENCLAW_OPD_TEACHER_LP_MAX_CONCURRENCY": Retired("the teacher needs no bound; judge.max_concurrent bounds the votes"),
    "OPENCLAW_RECORD_ENABLED": Retired(
        "every turn is kept in the run's ledger, with its votes: `openclaw-rl turns`", frozenset({"1"})
    ),
    "OPENCLAW_RECORD_FILE": Retired("no such file is written; `openclaw-rl turns export RUN --out FILE` writes one"),
    "OPENCLAW_PRM_RECORD_FILE": Retired("no such file is written; `openclaw-rl turns export RUN --out FILE` has the votes"),
    "OPENCLAW_DETAILED_PRM_LOG": Retired("every vote is kept in the run's ledger: `openclaw-rl turns show`", frozenset({"1"})),
    "OPENCLAW_DETAILED_PRM_LOG_FILE": Retired(
        "no such file is written; `openclaw-rl turns export RUN --out FILE` has the votes"
    ),
    "OPENCLAW_REMOTE_PRM_BASE_URL": Retired('set judge.client=openai and judge.base_urls=["<URL>"]'),
    "OPENCLAW_REMOTE_PRM_API_KEY": Retired("give the key as OPENCLAW_JUDGE_API_KEY"),
    "OPENCLAW_REMOTE_PRM_JUDGE_MODEL": Retired("set judge.model"),
    "OPENCLAW_WORKSPACE": Retired("the feeder makes a folder for each conversation; feeder.cli.state says where"),
}
"""Names without a parameter."""

_EARLIER = frozenset(PARAMETERS) | frozenset(HINTS) | frozenset(KEYS) | frozenset(RETIRED)
_PREFIX = "OPENCLAW_"
_IN_SMALL = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def read_legacy(environment: Mapping[str, str]) -> Legacy:
    """What an environment says by the earlier names.

    Raises:
        ConfigError: values that are not allowed, names that contradict each other, retired names, unknown OPENCLAW_* names:
            all of them, a line each.
    """
    given = _given(environment)
    problems = [_unknown(name) for name, text in environment.items() if text.strip() and _is_unknown(name)]
    parameters: dict[str, dict[str, Any]] = {}
    hints: dict[str, Any] = {}
    retired: list[str] = []
    for name, text in given.items():
        try:
            if name in PARAMETERS:
                parameters[name] = {dotted: _value(dotted, read(text)) for dotted, read in PARAMETERS[name].items()}
            elif name in HINTS:
                hints[HINTS[name]] = _hint(name, text)
            elif name in RETIRED:
                _refuse_retired(RETIRED[name], text)
                retired.append(name)
            elif name == "SGLANG_API_KEY":
                _refuse_blanks(text)
        except ValueError as error:
            said = name if name in KEYS or name.endswith("_API_KEY") else f"{name}={_shown(name, text)}"
            problems.append(f"{said}: {error}")
    problems += _contradictions(given, parameters)
    if problems:
        raise ConfigError("\n".join(problems))
    shown = {name: _shown(name, text) for name, text in given.items() if name not in KEYS}
    return Legacy(parameters, ClusterHints(**hints), shown, tuple(retired), given.get("SGLANG_API_KEY"))


def _given(environment: Mapping[str, str]) -> dict[str, str]:
    """The earlier names that hold something."""
    values = {name: environment.get(name, "").strip() for name in sorted(_EARLIER)}
    values |= {name: environment.get(name.lower(), "").strip() for name in _IN_SMALL if not values[name]}
    return {name: text for name, text in values.items() if text}


def _is_unknown(name: str) -> bool:
    return name.startswith(_PREFIX) and not any(name in known for known in (_EARLIER, OWN, OPENCLAW_CLI))


def _unknown(name: str) -> str:
    """The scripts' and our own names first: those of the CLI are many, and near to each other."""
    near = _nearest(name, _EARLIER | OWN) or _nearest(name, OPENCLAW_CLI)
    hint = f"did you mean {near}? Else unset it" if near else "unset it; docs/MIGRATION.md has those that there are"
    return f"{name}: there is no such name; {hint}"


def _nearest(name: str, known: frozenset[str]) -> str | None:
    """Without the prefix, which would make all of them near."""
    ends = sorted(other.removeprefix(_PREFIX) for other in known if other.startswith(_PREFIX))
    near = difflib.get_close_matches(name.removeprefix(_PREFIX), ends, n=1)
    return _PREFIX + near[0] if near else None


def _value(dotted: str, text: str) -> Any:
    """The text as the schema takes it. Raises ValueError saying what is allowed."""
    adapter = _adapter(dotted)
    try:
        value = adapter.validate_python(text)
    except ValidationError as error:
        raise ValueError(f"{dotted}: {error.errors()[0]['msg']}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{dotted}: it must be a finite number")
    return adapter.dump_python(value, mode="json")


@cache
def _adapter(dotted: str) -> TypeAdapter[Any]:
    """Reads one parameter with its type and bounds."""
    *path, leaf = dotted.split(".")
    section: type[BaseModel] = RunConfig
    for key in path:
        section = cast("type[BaseModel]", section.model_fields[key].annotation)
    info = section.model_fields[leaf]
    # Put together while the program runs, which no type checker can follow.
    annotated: Any = Annotated
    taken: Any = annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    return TypeAdapter[Any](taken)


def _hint(name: str, text: str) -> Any:
    """Raises ValueError saying what is allowed."""
    if name in ("MASTER_ADDR", "PRM_NODE"):
        if not _is_host(text):
            raise ValueError("it must be a host's name or address, without user, port or scheme")
        return text
    if name == "WORK_ROOT":
        if not text.startswith("/"):
            raise ValueError("it must be an absolute path: it is the same on every host")
        return Path(text)
    if name == "PRM_GPUS":
        if not re.fullmatch(r"[0-9]{1,2}", text) or not 1 <= int(text) <= 16:
            raise ValueError("it must be a whole number from 1 to 16, the NPUs of the judge's host")
        return int(text)
    return text


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", text) is not None
    return True


def _refuse_retired(name: Retired, text: str) -> None:
    if name.as_it_is is not None and text not in name.as_it_is:
        allowed = f"; allowed is {' or '.join(sorted(name.as_it_is))}" if name.as_it_is else "; unset it"
        raise ValueError(f"{name.instead}{allowed}")


def _refuse_blanks(key: str) -> None:
    if not re.fullmatch(r"[!-~]+", key):
        raise ValueError("a key has no blanks and nothing beyond ASCII")


def _contradictions(given: Mapping[str, str], parameters: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each parameter that two variables give two values."""
    said: dict[str, dict[str, Any]] = {}
    for name, values in parameters.items():
        for dotted, value in values.items():
            said.setdefault(dotted, {})[name] = value
    return [
        f"{' and '.join(f'{name}={given[name]}' for name in by)} both set {dotted}; give one of them, or one value"
        for dotted, by in said.items()
        if len(set(by.values())) > 1
    ]


def _shown(name: str, text: str) -> str:
    """Users and passwords in URLs are nobody's business."""
    return re.sub(r"(^|//)[^/]*@", r"\1***@", text) if name.endswith(("_PROXY", "_URL")) else text
