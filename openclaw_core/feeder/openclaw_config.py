"""What the openclaw CLI is told: its configuration for one conversation, and its environment.

Each entry is there for a reason that was measured; docs/OPENCLAW_CLI.md has them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.openclaw_install import Installation

AGENT = "main"
PROVIDER = "openclaw-rl"
PLUGIN_ID = "openclaw-rl"
PLUGIN = Path(__file__).parent / "plugin"

RESERVE_TOKENS = 1024
"""Room for the next message, beside that for the answer, below which the CLI summarises its history."""
KEEP_TOKENS = 20_000
"""What it then leaves as it is, by default; never more than a quarter of the context."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where the requests go. ``base_url`` ends in /v1."""

    base_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class StateDir:
    """The CLI's folder for one conversation; nobody else may look into it, for the key is in there."""

    path: Path

    @property
    def config_file(self) -> Path:
        """What the CLI reads at every turn."""
        return self.path / "openclaw.json"

    @property
    def sessions(self) -> Path:
        """Its session store: the transcripts and what it knows about them."""
        return self.path / "agents" / AGENT / "sessions"

    def create(self, config: dict[str, Any]) -> None:
        """Make the folder, with the configuration in it."""
        self.path.mkdir(mode=0o700, parents=True)
        (self.path / "no-plugins").mkdir()
        self.config_file.touch(mode=0o600)
        self.config_file.write_text(json.dumps(config, indent=1))


def cli_config(config: RunConfig, gateway: Gateway, workspace: Path) -> dict[str, Any]:
    """The content of openclaw.json."""
    cli, name = config.feeder.cli, config.model.served_as
    answer, window = config.rollout.max_response_tokens, cli.context_window or config.model.context_length
    model = {
        "id": name,
        "name": name,
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": window,
        "maxTokens": answer,
        # Without usage it guesses how full the context is.
        "compat": {"supportsUsageInStreaming": True},
    }
    told = {
        "models": {
            "mode": "replace",
            "providers": {
                PROVIDER: {
                    "baseUrl": gateway.base_url,
                    "apiKey": gateway.api_key,
                    "api": "openai-completions",
                    "models": [model],
                }
            },
        },
        "agents": {
            "defaults": {
                "model": {"primary": f"{PROVIDER}/{name}"},
                "workspace": str(workspace),
                "skipBootstrap": True,
                # By default it gives up on a request that is silent for a minute: a publish may take longer.
                "llm": {"idleTimeoutSeconds": 0},
                "compaction": {
                    "mode": "default",
                    # Its own floor of 20,000 would summarise all the time in a context of 32,768.
                    "reserveTokensFloor": 0,
                    "reserveTokens": answer + RESERVE_TOKENS,
                    "keepRecentTokens": min(KEEP_TOKENS, window // 4),
                    # Else it sends turns that nobody asked for.
                    "memoryFlush": {"enabled": False},
                },
            },
            "list": [{"id": AGENT, "default": True}],
        },
        "tools": _tools(cli.tools),
        "skills": {"allowBundled": ["none"]},
        "plugins": {
            "allow": [PLUGIN_ID],
            "load": {"paths": [str(PLUGIN)]},
            "slots": {"memory": "none"},
            "entries": {PLUGIN_ID: {"enabled": True, "config": _plugin(gateway.base_url, cli.system_prompt)}},
        },
    }
    return _literal(told)


def environment(installation: Installation, state: StateDir, node_cache: Path) -> dict[str, str]:
    """The whole environment of a CLI process: nothing is inherited, so no key and no proxy of ours gets in.

    ``node_cache``: where Node keeps compiled scripts, a folder of ours.
    """
    return {
        "PATH": os.pathsep.join((str(installation.node.parent), "/usr/local/bin", "/usr/bin", "/bin")),
        "HOME": str(state.path),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "OPENCLAW_STATE_DIR": str(state.path),
        # Half of a turn's CPU time each: a second start of itself, compiling its scripts, loading its own plugins.
        "OPENCLAW_NO_RESPAWN": "1",
        "NODE_COMPILE_CACHE": str(node_cache),
        "OPENCLAW_BUNDLED_PLUGINS_DIR": str(state.path / "no-plugins"),
    }


def _tools(allowed: tuple[str, ...]) -> dict[str, Any]:
    if not allowed:
        return {"deny": ["*"]}
    tools: dict[str, Any] = {"allow": list(allowed), "fs": {"workspaceOnly": True}}
    if "exec" in allowed:
        tools["exec"] = {"host": "gateway", "security": "full", "ask": "off"}
    return tools


def _plugin(base_url: str, system_prompt: str | None) -> dict[str, str]:
    return {"baseUrl": base_url} | ({} if system_prompt is None else {"systemPrompt": system_prompt})


def _literal(value: Any) -> Any:
    """With every text protected: the CLI would put environment variables in place of ``${NAME}``."""
    if isinstance(value, dict):
        return {name: _literal(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_literal(part) for part in value]
    return value.replace("${", "$${") if isinstance(value, str) else value
