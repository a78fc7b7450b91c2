"""A publish of SmolLM2-135M on one host, trainer to engine, against a plain copy of the same bytes.

Usage: python -m benchmarks.publish [--rounds N]      (needs the model of local-cpu: `make run` has fetched it)

`shared`: from the call to the trainer's rank until the engine has verified and loaded the weights, two real processes through
Ray. `copy`: torch's copy_ of the same tensors into others that are there already, in a process of its own with as many threads.
`broadcast`: the same weights over a process group (gloo, loopback) to a process that does what an SGLang rank does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import ray
import torch

from openclaw_core.config import load_config
from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.ray_engine import RayEngine
from openclaw_core.trainer.group import PublishedWeights, TrainerGroup
from openclaw_core.trainer.ranks import RankGroup
from openclaw_core.trainer.worker import TrainerWorker
from openclaw_core.weights.checksum import Checksum, checksum
from openclaw_core.weights.convert import convert_checkpoint
from openclaw_core.weights.hf_files import HFWeights
from openclaw_core.weights.layout import hf_directory

TARGET = 3.0
GROUP = "benchmark"
WARM_UPS = 3
"""Until every memory that publishes take turns with has been used."""


class TimedWorker(TrainerWorker):
    """The trainer's rank, and the parts of its publish one by one."""

    def parts(self) -> dict[str, float]:
        """Seconds of each part by itself, and of all together, piece by piece."""
        from openclaw_core.trainer.gather import hf_weights

        assert self.publisher is not None
        segment = self.publisher.prepare()
        started = time.perf_counter()
        named = dict(hf_weights(self.gpt, self.spec, grouped=True))
        gathered = time.perf_counter()
        for name, tensor in named.items():
            segment.tensors[name].view(tensor.shape).copy_(tensor)
        put = time.perf_counter()
        digest = Checksum()
        for name in named:
            digest.add(name, segment.tensors[name])
        digest.result()
        digested = time.perf_counter()
        segment.end(2**32)  # no publication that anybody was given
        self.publisher.publish(hf_weights(self.gpt, self.spec, grouped=True))
        return {
            "trainer_gather": gathered - started,
            "trainer_put": put - gathered,
            "trainer_checksum": digested - put,
            "trainer_all": time.perf_counter() - digested,
        }


class Copier:
    """The plain copy, and what an engine's checksum costs by itself."""

    def __init__(self, hf: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.source = {name: tensor.bfloat16().clone() for name, tensor in HFWeights(Path(hf)).items()}
        self.destination = {name: torch.zeros_like(tensor) for name, tensor in self.source.items()}

    def size(self) -> int:
        """Bytes."""
        return sum(tensor.nbytes for tensor in self.source.values())

    def copy(self) -> float:
        """Seconds."""
        started = time.perf_counter()
        for name, tensor in self.source.items():
            self.destination[name].copy_(tensor)
        return time.perf_counter() - started

    def checksum(self) -> float:
        """Seconds."""
        started = time.perf_counter()
        checksum(self.source.items())
        return time.perf_counter() - started


class Receiver:
    """See benchmarks/receiver.py."""

    def __init__(self, host: str, port: int) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.receiver", host, str(port), GROUP, "1", "2"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def ask(self, message: dict[str, Any], meanwhile: Callable[[], Awaitable[None]] | None = None) -> str:
        """A line in, a line out."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        if meanwhile:
            await meanwhile()
        return await self.line()

    async def line(self) -> str:
        """What it says next."""
        assert self._process.stdout is not None
        return await asyncio.to_thread(self._process.stdout.readline)

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


async def shared(trainer: TrainerGroup, engine: RayEngine, version: int) -> dict[str, float]:
    """One publish on this host."""
    await engine.pause()
    started = time.perf_counter()
    weights = await trainer.weights()
    ready = time.perf_counter()
    await engine.load_weights(weights, version, weights.checksum)
    done = time.perf_counter()
    await engine.resume()
    return {"shared": done - started, "shared_trainer": ready - started, "shared_engine": done - ready}


async def broadcast(trainer: TrainerGroup, receiver: Receiver) -> dict[str, float]:
    """One publish by a group."""
    started = time.perf_counter()
    weights = await trainer.weights()
    ready = time.perf_counter()
    for index, bucket in enumerate(weights.buckets):
        message = {"names": bucket.names, "dtypes": bucket.dtypes, "shapes": bucket.shapes}
        await receiver.ask(message, lambda index=index: weights.send(GROUP, index))
    sent = time.perf_counter()
    found, verify, load = json.loads(await receiver.ask({}))
    if found != weights.checksum:
        sys.exit(f"the broadcast arrived with checksum {found}, not {weights.checksum}")
    return {
        "broadcast": time.perf_counter() - started,
        "broadcast_trainer": ready - started,
        "broadcast_send": sent - ready,
        "broadcast_checksum": verify,
        "broadcast_load": load,
    }


async def measure(config: RunConfig, base: Path, rounds: int) -> tuple[int, dict[str, list[float]]]:
    """(bytes, seconds by name), all ways taking turns after a warm-up of each. ``base``: the converted model."""
    hf = hf_directory(config)
    threads = config.train.threads
    copier: Any = ray.remote(num_cpus=0)(Copier).remote(str(hf), threads)
    engine = RayEngine.start(config, hf)
    ranks = await RankGroup.start(
        "trainer", TimedWorker, config, hf, base, tensor_parallel=1, hosts=["localhost"], threads=threads
    )
    trainer = TrainerGroup(ranks, None, config, Path(tempfile.gettempdir()))  # pyright: ignore[reportArgumentType]
    receiver = None
    try:
        weights: PublishedWeights = await trainer.weights()
        receiver = Receiver(*await weights.open_group(GROUP, 2, "gloo"))
        await weights.group_joined(GROUP)
        await receiver.line()
        size: int = await copier.size.remote()
        seconds: dict[str, list[float]] = {}
        for version in range(-WARM_UPS, rounds):
            found = {"copy": await copier.copy.remote()}
            found |= await shared(trainer, engine, version + WARM_UPS + 1)
            found |= await broadcast(trainer, receiver)
            found |= (await ranks.call("parts"))[0]
            found["engine_checksum"] = await copier.checksum.remote()
            if version >= 0:
                for name, value in found.items():
                    seconds.setdefault(name, []).append(value)
                print(", ".join(f"{name} {found[name] * 1000:.0f} ms" for name in ("copy", "shared", "broadcast")))
        return size, seconds
    finally:
        if receiver:
            receiver.stop()
        ranks.stop()
        await engine.close()


def main() -> None:
    """Measure and print; exit code 1 where the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    config = load_config("local-cpu")
    if not hf_directory(config).exists():
        sys.exit("the model is not there; run `make run STEPS=1` first")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as directory:
            base = Path(directory) / "model"
            convert_checkpoint(hf_directory(config), base, config.model.dtype, print)
            size, measured = asyncio.run(measure(config, base, arguments.rounds))
    finally:
        ray.shutdown()
    seconds = {name: round(median(values), 4) for name, values in measured.items()}
    ratios = [publish / copy for publish, copy in zip(measured["shared"], measured["copy"], strict=True)]
    ratio = median(ratios)
    result = {
        "benchmark": "publish",
        "bytes": size,
        "ratio": round(ratio, 3),
        "ratios": [round(one, 3) for one in ratios],
        "broadcast_ratio": round(seconds["broadcast"] / seconds["copy"], 3),
        "seconds": seconds,
        "targets": {"ratio": TARGET},
        "met": ratio <= TARGET,
    }
    print(json.dumps(result))
    sys.exit(0 if result["met"] else 1)


if __name__ == "__main__":
    main()
