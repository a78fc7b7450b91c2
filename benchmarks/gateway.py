"""What the gateway adds to an engine that answers at once: latency, memory, and whether anything fails under load.

Usage: python -m benchmarks.gateway [--rounds N]      (needs the model of local-cpu: `make run` has fetched it)

Three processes: this one holds the sessions (each asks, reads the streamed answer, thinks, asks again with the longer
history); one is the gateway as the service runs it (renderer, waiting room, ledger on disk, judge) before an engine that
needs no time; one serves the same engine with nothing before it. They take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import psutil
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from openclaw_core.config import load_config
from openclaw_core.engines.protocol import EngineAborted, GenerateRequest, Tokens
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.app import KEEP_ALIVE_S, create_app
from openclaw_core.gateway.chat import GatewayDeps
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.judge import build_judge
from openclaw_core.ledger import Ledger
from openclaw_core.log import configure_logging
from openclaw_core.loop.intake import Intake
from openclaw_core.loop.publishing import Publisher
from openclaw_core.types import FinishReason
from openclaw_core.weights.layout import hf_directory
from openclaw_core.weights.publish import PublishedWeights

KEY = "benchmark"
ANSWER_TOKENS = 32
PROMPT_TOKENS = 500
TURNS = 4
THINK_S = 2.0
"""Mean time between an answer and the next question; drawn from an exponential distribution."""
PUBLISHES = 50
TARGETS = {"added_p50_ms": 5.0, "added_p99_ms": 25.0}


class InstantEngine:
    """Says the same 32 tokens to everyone, at once (or a token every ``token_s``), and stops for publishes as engines do."""

    grammars = False

    def __init__(self, token_ids: list[int], token_s: float) -> None:
        self._token_ids, self._token_s = token_ids, token_s
        self._version, self._running, self._generation = 0, asyncio.Event(), 0
        self._running.set()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        await self._running.wait()
        generation = self._generation
        for index in range(request.continued, ANSWER_TOKENS):
            await asyncio.sleep(self._token_s)
            if generation != self._generation:
                raise EngineAborted("paused")
            last = FinishReason.LENGTH if index == ANSWER_TOKENS - 1 else None
            yield Tokens((self._token_ids[index],), (-0.1,), self._version, last)

    async def prefill_logprobs(self, prompt_ids: Any, response_ids: Any, temperature: float) -> tuple[float, ...]:
        return (-0.1,) * len(response_ids)

    async def pause(self) -> None:
        self._running.clear()
        self._generation += 1

    async def resume(self) -> None:
        self._running.set()

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        await asyncio.sleep(0.05)
        self._version = version

    async def version(self) -> int:
        return self._version


# ---- the two servers ----------------------------------------------------------------------------------------------------


def serve(which: str, directory: str, token_s: float) -> None:
    """Child process: serve one side. stdin: "publish" or "end"; stdout: the port, then an answer to each."""
    asyncio.run(_serve(which, Path(directory), token_s))


async def _serve(which: str, directory: Path, token_s: float) -> None:
    configure_logging()
    config = load_config("local-cpu", {"rollout.max_response_tokens": ANSWER_TOKENS, "rollout.max_staleness": 8})
    renderer = ChatRenderer.from_pretrained(hf_directory(config))
    text = " ".join(f"word{n}" for n in range(ANSWER_TOKENS))
    engine = InstantEngine(renderer.tokenizer.encode(text, add_special_tokens=False)[:ANSWER_TOKENS], token_s)
    room = WaitingRoom(hold_max_s=120, hold_max_requests=1024)
    ledger = Ledger(directory / "ledger.sqlite")
    intake = Intake(ledger, build_judge(config), room.notify, config, renderer.hint_ids)
    publisher = Publisher(room, engine, config.rollout)
    if which == "gateway":
        app = create_app(GatewayDeps(config, lambda: {"run": KEY}, renderer, engine, room, intake))
    else:
        app = direct(engine, renderer)
    before = psutil.Process().memory_info().rss
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_keep_alive=KEEP_ALIVE_S))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        print(listener.getsockname()[1], flush=True)
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while (await lines.readline()).strip() == b"publish":
            weights: Any = object.__new__(PublishedWeights)
            object.__setattr__(weights, "checksum", "none")
            await publisher.publish(weights, publisher.publishes + 1)
            print("published", flush=True)
        grown = psutil.Process().memory_info().rss - before
        turns = [name for (name,) in sqlite3.connect(directory / "ledger.sqlite").execute("SELECT turn_id FROM turns")]
        print(json.dumps({"memory_bytes": grown, "turns": turns}), flush=True)
        server.should_exit = True
        await task
    await intake.stop()


def direct(engine: InstantEngine, renderer: ChatRenderer) -> FastAPI:
    """The engine with nothing before it: the same events, without rendering, sessions and ledger."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        await request.json()
        sampling: Any = None

        async def events() -> AsyncGenerator[str, None]:
            async for tokens in engine.generate(GenerateRequest("r", (1,), sampling, ())):
                choice = {"index": 0, "delta": {"content": renderer.decode(tokens.token_ids)}}
                yield f"data: {json.dumps({'id': 'r', 'choices': [choice]})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return app


@dataclass
class Side:
    """A server in a process of its own."""

    which: str
    token_s: float = 0.0
    directory: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)

    def __enter__(self) -> Side:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gateway", "--serve", self.which]
        command += ["--directory", self.directory.name, "--token-s", str(self.token_s)]
        with Path(self.directory.name, "log").open("w") as log:  # as the service's, a line an answer
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.url = f"http://127.0.0.1:{int(self._read())}/v1/chat/completions"
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        self._process.wait()
        self.directory.cleanup()

    async def publish(self) -> None:
        """One publish, to its end."""
        await asyncio.to_thread(self._ask, "publish")

    def end(self) -> dict[str, Any]:
        """What the server has to say at the end."""
        return json.loads(self._ask("end"))

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the server {self.which} ended; has `make run` fetched the model?")
        return line


# ---- the sessions -------------------------------------------------------------------------------------------------------


@dataclass
class Load:
    """What the sessions saw."""

    first_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def percentiles(self) -> dict[str, float]:
        """p50 and p99 of both times, ms."""
        return {
            f"{name}_p{share}_ms": percentile(values, share)
            for name, values in (("first", self.first_ms), ("whole", self.whole_ms))
            for share in (50, 99)
        }


def percentile(values: list[float], share: int) -> float:
    """By nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share / 100 * len(ordered)))]


async def drive(url: str, sessions: int, *, think_s: float = THINK_S) -> Load:
    """All sessions at once, begun over one thinking time."""
    load, rng = Load(), random.Random(sessions)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {KEY}"}) as client:
        await asyncio.gather(
            *(_session(client, url, f"s{n}", load, random.Random(rng.random()), think_s) for n in range(sessions))
        )
    return load


async def _session(client: aiohttp.ClientSession, url: str, name: str, load: Load, rng: random.Random, think_s: float) -> None:
    question = " ".join(str(rng.randrange(10)) for _ in range(PROMPT_TOKENS // 2))
    messages = [{"role": "user", "content": question}]
    await asyncio.sleep(rng.uniform(0, think_s))
    for turn in range(TURNS):
        answer = await _ask(client, url, name, messages, load)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"Once more, {turn}."}]
        await asyncio.sleep(rng.expovariate(1 / think_s))


async def _ask(client: aiohttp.ClientSession, url: str, name: str, messages: list[Any], load: Load) -> str:
    body = {"model": "SmolLM2-135M-Instruct", "messages": messages, "stream": True}
    started, first, answer, done = time.perf_counter(), None, "", False
    try:
        async with client.post(url, json=body, headers={"X-Session-Id": name}) as response:
            if response.status != 200:
                load.errors.append(f"{response.status}: {await response.text()}")
                return ""
            async for line in response.content:
                if line.startswith(b"data: [DONE]"):
                    done = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        load.errors.append(str(event["error"]))
                    elif text := event["choices"][0]["delta"].get("content"):
                        first = first or time.perf_counter()
                        answer += text
    except aiohttp.ClientError as error:
        load.errors.append(repr(error))
        return answer
    ended = time.perf_counter()
    if not done or first is None:
        load.errors.append("the stream broke off")
        return answer
    load.first_ms.append(1000 * (first - started))
    load.whole_ms.append(1000 * (ended - started))
    load.turns.append(response.headers.get("x-openclaw-turn-id", ""))
    return answer


# ---- what is measured ---------------------------------------------------------------------------------------------------


def latency(rounds: int) -> dict[str, Any]:
    """64 sessions on either side, in turns; what the gateway adds is the difference of the medians of the rounds."""
    seen: dict[str, list[dict[str, float]]] = {"direct": [], "gateway": []}
    errors: list[str] = []
    for _ in range(rounds):
        for which, measured in seen.items():
            with Side(which) as side:
                load = asyncio.run(drive(side.url, 64))
            errors += load.errors
            measured.append(load.percentiles())
            print(which, measured[-1], file=sys.stderr)
    middle = {which: {key: median(r[key] for r in measured) for key in measured[0]} for which, measured in seen.items()}
    added = {f"added_{key}": middle["gateway"][key] - middle["direct"][key] for key in middle["direct"]}
    return {**middle, **added, "errors": len(errors)}


def many() -> dict[str, Any]:
    """512 sessions: nothing may fail."""
    with Side("gateway") as side:
        load = asyncio.run(drive(side.url, 512))
        end = side.end()
    print("512 sessions", load.percentiles(), load.errors[:3], file=sys.stderr)
    return {
        "sessions": 512,
        "requests": len(load.whole_ms),
        "errors": len(load.errors),
        "memory_kb_per_session": end["memory_bytes"] / 512 / 1000,
        **load.percentiles(),
        **exactly_once(load, end),
    }


def publishes() -> dict[str, Any]:
    """64 sessions whose answers take a while, and 50 publishes meanwhile."""

    async def run(side: Side) -> Load:
        sessions = asyncio.create_task(drive(side.url, 64, think_s=THINK_S / 2))
        for _ in range(PUBLISHES):
            await asyncio.sleep(0.1)
            await side.publish()
        return await sessions

    with Side("gateway", token_s=0.01) as side:
        load = asyncio.run(run(side))
        end = side.end()
    print("publishes", load.percentiles(), load.errors[:3], file=sys.stderr)
    return {"publishes": PUBLISHES, "requests": len(load.whole_ms), "errors": len(load.errors), **exactly_once(load, end)}


def exactly_once(load: Load, end: dict[str, Any]) -> dict[str, Any]:
    """Whether each acknowledged turn is in the ledger once, and no other."""
    return {"acknowledged": len(load.turns), "in_ledger": len(end["turns"]), "same": sorted(load.turns) == sorted(end["turns"])}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=("gateway", "direct"))
    parser.add_argument("--directory")
    parser.add_argument("--token-s", type=float, default=0.0)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.directory, arguments.token_s)
        return
    result = {"latency": latency(arguments.rounds), "many": many(), "publishes": publishes()}
    added = result["latency"]
    met = {
        "added_p50_ms": added["added_whole_p50_ms"] <= TARGETS["added_p50_ms"],
        "added_p99_ms": added["added_whole_p99_ms"] <= TARGETS["added_p99_ms"],
        "no_error": not any(part["errors"] for part in result.values()),
        "exactly_once": result["many"]["same"] and result["publishes"]["same"],
    }
    print(json.dumps({"benchmark": "gateway", **result, "targets": TARGETS, "met": met, "ok": all(met.values())}))
    sys.exit(not all(met.values()))


if __name__ == "__main__":
    main()
