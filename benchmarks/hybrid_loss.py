"""The output head of the hybrid loss in three forms: memory and time.

Usage: python -m benchmarks.hybrid_loss [--size small|full] [--dtype bf16|fp32] [--rounds N]

The work is one sample of P prompt and T response tokens: log-probs of the student, forward and backward, and its entropy;
log-probs of C = 3 hinted teachers, forward; top-K of each; choice of the hint; GRPO and distillation through ``hybrid_loss``;
gradients of the hidden states and of the output matrix, the latter added to an fp32 ``main_grad`` as Megatron's DDP does.
Hidden states are random: no transformer runs. The forms:

* ``full``: logits and log-softmax on all P + T positions, the response's log-probs selected afterwards.
* ``response``: logits and log-softmax on the T response positions.
* ``chunked``: ours, ``head_stats`` and ``logits_at``.

The first two are plain torch: product in the dtype of the run, log-softmax in fp32, rounded logits freed at once, one teacher
at a time and without a graph, of each of which only top-K ids and K log-probs are kept.

Each measurement has a process of its own, and the forms take turns. It does the work twice. The first time gives the peak:
VmHWM after it less VmRSS before it, VmHWM having been reset (5 written to /proc/self/clear_refs) when inputs, ``h.grad`` and
``main_grad`` were allocated and filled and a tiny run of the same form had loaded the libraries. The second, with kernels
compiled, gives the time, by the clock and in CPU seconds of all threads. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from openclaw_core.losses import (
    HybridInputs,
    LossConfig,
    OpdInputs,
    head_stats,
    hybrid_loss,
    logits_at,
    select,
    token_weights,
)

HINTS, TOPK, TEMPERATURE, CHUNK = 3, 4, 0.7, 1024
TARGETS = {"peak/full": 1 / 20, "peak/response": 1 / 5, "seconds/full": 1 / 3, "seconds/response": 2.0}
"""At most, at full size in bf16."""
LOSS_GAP = {"fp32": 1e-4, "bf16": 5e-2}
"""How far the losses of the three forms may be apart; in bf16 the first two round their logits, which changes top-K sets."""


@dataclass(frozen=True)
class Size:
    """P, T, V and the width of the hidden states."""

    prompt: int
    response: int
    vocab: int
    hidden: int


SIZES = {"full": Size(3072, 1024, 151_936, 1024), "small": Size(384, 128, 32_000, 256)}
WARM_UP = Size(6, 4, 64, 16)


@dataclass(frozen=True)
class Inputs:
    """Hidden states of student [P + T, H] and teachers [C, P + T, H], output matrix [V, H], ids that were sampled [T]."""

    h: Tensor
    weight: Any
    teachers: Tensor
    targets: Tensor
    rows: slice
    """The positions that predict the response."""

    @classmethod
    def make(cls, size: Size, dtype: torch.dtype) -> Inputs:
        """The same numbers for every form and dtype; teachers are near the student, so that their top-K overlap."""
        generator = torch.Generator().manual_seed(0)
        positions = size.prompt + size.response
        h = torch.randn(positions, size.hidden, generator=generator)
        teachers = h + 0.3 * torch.randn(HINTS, positions, size.hidden, generator=generator)
        matrix = torch.empty(size.vocab, size.hidden, dtype=torch.bfloat16)
        matrix = matrix.normal_(0, 2 * size.hidden**-0.5, generator=generator).to(dtype)
        h, teachers = (x.bfloat16().to(dtype) for x in (h, teachers))
        weight: Any = torch.nn.Parameter(matrix)
        weight.main_grad, weight.grad_added_to_main_grad = torch.zeros_like(matrix, dtype=torch.float32), False
        weight.register_post_accumulate_grad_hook(add_to_main_grad)
        h.requires_grad_().grad = torch.zeros_like(h)
        targets = torch.randint(size.vocab, (size.response,), generator=generator)
        return cls(h, weight, teachers, targets, slice(size.prompt - 1, positions - 1))


def add_to_main_grad(parameter: Any) -> None:
    """The rule of Megatron's DDP."""
    if not parameter.grad_added_to_main_grad:
        parameter.main_grad.add_(parameter.grad)
    parameter.grad = None


def plain(inputs: Inputs, of: Callable[[Tensor], Tensor], rows: slice) -> Tensor:
    """Log-softmax over ``of`` (hidden states), of which ``rows`` are the response."""
    log_probs = log_softmax(of(inputs.h), inputs.weight)[rows]
    student_ids, entropy = log_probs.detach().topk(TOPK).indices, entropy_of(log_probs.detach())
    teacher_ids: list[Tensor] = []
    teacher_logp: list[Tensor] = []
    with torch.no_grad():
        for hidden in inputs.teachers:
            scores = log_softmax(of(hidden), inputs.weight)[rows]
            teacher_ids.append(scores.topk(TOPK).indices)
            teacher_logp.append(scores.gather(1, student_ids))
            del scores
    cur_logp = log_probs.gather(1, torch.cat([inputs.targets[:, None], student_ids], 1))
    return finish(cur_logp, entropy, student_ids, torch.stack(teacher_ids), lambda c: choose(torch.stack(teacher_logp), c))


def log_softmax(h: Tensor, weight: Tensor) -> Tensor:
    """[rows, V] in fp32."""
    return (h @ weight.T).float().div_(TEMPERATURE).log_softmax(-1)


def entropy_of(log_probs: Tensor) -> Tensor:
    """[rows]"""
    return -log_probs.exp().mul_(log_probs).sum(-1)


def full(inputs: Inputs) -> Tensor:
    """All positions."""
    return plain(inputs, lambda h: h, inputs.rows)


def response(inputs: Inputs) -> Tensor:
    """Response positions."""
    return plain(inputs, lambda h: h[inputs.rows], slice(None))


def chunked(inputs: Inputs) -> Tensor:
    """Ours, as the trainer calls it."""
    weight, vocab = inputs.weight, inputs.weight.shape[0]
    temperature = torch.full(inputs.targets.shape, TEMPERATURE)
    hidden = inputs.h[inputs.rows]
    stats = head_stats(hidden, weight, temperature, vocab_size=vocab, topk=TOPK, chunk=CHUNK, tied=False)
    with torch.no_grad():
        teachers = [
            head_stats(h[inputs.rows], weight, temperature, vocab_size=vocab, topk=TOPK, chunk=CHUNK, tied=False)
            for h in inputs.teachers
        ]

    @torch.no_grad()
    def teacher_logp(hint: Tensor) -> Tensor:
        chosen, lse = choose(inputs.teachers[:, inputs.rows], hint), choose(torch.stack([t.lse for t in teachers]), hint)
        return logits_at(chosen, weight, stats.topk_ids, temperature, chunk=CHUNK, tied=False) - lse[:, None]

    ids = torch.cat([inputs.targets[:, None], stats.topk_ids], 1)
    cur_logp = logits_at(hidden, weight, ids, temperature, chunk=CHUNK, tied=False) - stats.lse[:, None]
    return finish(cur_logp, stats.entropy, stats.topk_ids, torch.stack([t.topk_ids for t in teachers]), teacher_logp)


def choose(values: Tensor, hint: Tensor) -> Tensor:
    """values[c*(t), t] of [C, T, ...]."""
    return values[hint, torch.arange(hint.shape[0])]


def finish(
    cur_logp: Tensor,
    entropy: Tensor,
    student_ids: Tensor,
    teacher_ids: Tensor,
    teacher_logp: Callable[[Tensor], Tensor],
) -> Tensor:
    """Selection and loss; the same for all forms.

    ``cur_logp`` [T, 1 + K] is of the sampled token and of the support, ``teacher_logp`` gives [T, K] for c* [T].
    """
    tokens = cur_logp.shape[0]
    mask = torch.ones(tokens, dtype=torch.bool)
    choice = select(student_ids, teacher_ids, mask, hint_selection="sequence_optimal", subset_mode="student")
    old_logp = cur_logp.detach()
    opd = OpdInputs(
        cur_logp=cur_logp[:, 1:],
        old_logp=old_logp[:, 1:],
        teacher_logp=teacher_logp(choice.hint),
        teacher_old_logp=old_logp[:, 1:],
        support=choice.support.mask,
        has_hint=mask,
        hint=choice.hint,
        overlap=choice.overlap,
    )
    inputs = HybridInputs(
        cur_logp=cur_logp[:, 0],
        old_logp=old_logp[:, 0],
        rollout_logp=old_logp[:, 0],
        advantage=torch.ones(tokens),
        entropy=entropy,
        mask=mask,
        weight=token_weights(mask, torch.zeros(tokens, dtype=torch.int64), global_samples=1),
        shaped=~mask,
        opd=opd,
    )
    return hybrid_loss(inputs, LossConfig(kl_coef=0.0)).loss


FORMS: dict[str, Callable[[Inputs], Tensor]] = {"full": full, "response": response, "chunked": chunked}


@dataclass(frozen=True)
class Measurement:
    """Of one form in one process."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    loss: float
    h_grad: float
    """L2 norm, as the next."""
    weight_grad: float


def measure(form: str, size: Size, dtype: torch.dtype) -> Measurement:
    """Run the form, in this process."""
    FORMS[form](Inputs.make(WARM_UP, dtype)).backward()
    inputs = Inputs.make(size, dtype)

    def work() -> float:
        loss = FORMS[form](inputs)
        loss.backward()
        return loss.item()

    Path("/proc/self/clear_refs").write_text("5")
    before = status_mb("VmRSS")
    if status_mb("VmHWM") > before + 1:
        sys.exit("this kernel does not reset VmHWM through /proc/self/clear_refs: the peak could not be measured")
    loss = work()
    peak = status_mb("VmHWM") - before
    assert inputs.h.grad is not None
    norms = inputs.h.grad.float().norm().item(), inputs.weight.main_grad.norm().item()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Measurement(time.perf_counter() - wall, time.process_time() - cpu, peak, loss, *norms)


def status_mb(field: str) -> float:
    """A line of /proc/self/status, in 10^6 bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024 / 1e6


def medians(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Each form's measurements, a child process each."""
    found: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
    options = ["--size", arguments.size, "--dtype", arguments.dtype]
    for _ in range(arguments.rounds):
        for form, rows in found.items():
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.hybrid_loss", "--child", form, *options]
            rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
            print(f"{form:9}", "  ".join(f"{name} {value:.6g}" for name, value in rows[-1].items()), flush=True)
    return {form: {name: median(row[name] for row in rows) for name in rows[0]} for form, rows in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=FORMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[arguments.dtype]
    if arguments.child:
        print(json.dumps(asdict(measure(arguments.child, SIZES[arguments.size], dtype))))
        return
    print(f"load average {os.getloadavg()[0]:.2f}", flush=True)
    forms = medians(arguments)
    print(f"load average {os.getloadavg()[0]:.2f}")
    ratios = {
        f"{what}/{other}": forms["chunked"][field] / forms[other][field]
        for what, field in (("peak", "peak_mb"), ("seconds", "seconds"))
        for other in ("full", "response")
    }
    losses = [form["loss"] for form in forms.values()]
    loss_gap = max(losses) - min(losses)
    same = loss_gap <= LOSS_GAP[arguments.dtype]
    # Targets are for the full size in bf16; elsewhere there are none, and the losses must agree.
    targets = TARGETS if (arguments.size, arguments.dtype) == ("full", "bf16") else {}
    result = {"benchmark": "hybrid_loss", "size": arguments.size, "dtype": arguments.dtype, **forms}
    result |= {"ratios": ratios, "targets": targets, "loss_gap": loss_gap}
    print(json.dumps(result | {"ok": same and all(ratios[name] <= target for name, target in targets.items())}))


if __name__ == "__main__":
    main()
