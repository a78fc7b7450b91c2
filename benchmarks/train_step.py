"""One hybrid step of the trainer against a plain policy-gradient step of transformers on the same turns.

Usage: python -m benchmarks.train_step [--rounds N]      (needs the model of local-cpu: `make run` has fetched it)
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from openclaw_core.config import load_config
from openclaw_core.config.schema import RunConfig
from openclaw_core.types import Sample
from openclaw_core.weights.layout import hf_directory, torch_dist_directory

TARGET = 3.0


def make_samples(vocab_size: int) -> list[Sample]:
    """16 turns as local-cpu has them: prompts of 110 to 170 tokens, answers of 40 to 64, three of four with three hints."""
    rng = random.Random(0)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, vocab_size) for _ in range(rng.randint(low, high)))

    samples: list[Sample] = []
    for i in range(16):
        prompt, response, hints = ids(110, 170), ids(40, 64), 0 if i % 4 == 0 else 3
        samples.append(
            Sample(
                sample_id=str(i),
                session_id=str(i),
                prompt_ids=prompt,
                response_ids=response,
                rollout_logprobs=(-10.0,) * len(response),
                loss_mask=(1,) * len(response),
                reward=-1.0 if hints else 1.0,
                teacher_prompt_ids=tuple(prompt[:-5] + ids(10, 25) + prompt[-5:] for _ in range(hints)),
                hints=("hint",) * hints,
                temperature=0.7,
                shaped=False,
                weight_version=0,
                truncated=False,
            )
        )
    return samples


def hybrid(config: RunConfig) -> Callable[[], object]:
    """Our step; the optimiser's included."""
    from openclaw_core.trainer.worker import TrainerWorker

    hf = str(hf_directory(config))
    worker = TrainerWorker(config.model_dump_json(), hf, rank=0, world_size=1)
    worker.join(None, tensor_parallel=1, threads=config.train.threads)
    worker.build(hf, str(torch_dist_directory(config)))
    samples = make_samples(worker.spec.vocab_size)
    return lambda: worker.train(1, samples, {}, None)


def plain(config: RunConfig) -> Callable[[], object]:
    """Reward-weighted log-likelihood of the response tokens, bf16 autocast over fp32 parameters, AdamW."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(config.train.threads)
    model = AutoModelForCausalLM.from_pretrained(hf_directory(config), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer.lr)
    samples = make_samples(model.config.vocab_size)

    def step() -> None:
        from openclaw_core.trainer.packing import MicroBatch, micro_batches

        optimizer.zero_grad()
        for batch in map(MicroBatch.of, micro_batches(samples, config.train.max_tokens_per_rank)[0]):
            with torch.autocast("cpu", torch.bfloat16):
                hidden = model.model(batch.packed.ids, use_cache=False).last_hidden_state
                rows = hidden.transpose(0, 1).reshape(-1, hidden.shape[-1])[batch.packed.rows]
                logits = model.lm_head(rows)
            logp = -torch.nn.functional.cross_entropy(logits.float() / 0.7, batch.targets, reduction="none")
            (-(logp * batch.per_row([s.reward for s in batch.samples])).sum() / 1024).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def child(which: str) -> None:
    """Serve one side: a step for each line on stdin, its seconds on stdout."""
    config = load_config("local-cpu")
    step = {"hybrid": hybrid, "plain": plain}[which](config)
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        step()
        print(time.perf_counter() - started, flush=True)


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds per step of both sides, taking turns; each has a process of its own (the trainer changes torch)."""
    sides: dict[str, subprocess.Popen[str]] = {}
    for name in ("plain", "hybrid"):
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.train_step", "--child", name]
        sides[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for name, side in sides.items():
        assert side.stdout is not None
        while (line := side.stdout.readline()).strip() != "ready":
            if not line:
                sys.exit(f"{name} ended while it was starting; has `make run` fetched the model?")
    for _ in range(rounds):
        for name, side in sides.items():
            assert side.stdin is not None and side.stdout is not None
            side.stdin.write("\n")
            side.stdin.flush()
            seconds[name].append(float(side.stdout.readline()))
            print(f"{name}: {seconds[name][-1]:.2f} s")
    for side in sides.values():
        side.communicate(timeout=60)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=("hybrid", "plain"))
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    if not Path(hf_directory(load_config("local-cpu"))).exists():
        sys.exit("the model is not there; run `make run STEPS=1` first")
    seconds = {name: median(values) for name, values in measure(arguments.rounds).items()}
    ratio = seconds["hybrid"] / seconds["plain"]
    print(json.dumps({"benchmark": "train_step", **seconds, "ratio": ratio, "target": TARGET, "ok": ratio <= TARGET}))


if __name__ == "__main__":
    main()
