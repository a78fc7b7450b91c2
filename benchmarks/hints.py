"""Does a shipped hint help? Answers with each hint of the scripted judge spliced in, against answers without.

Usage: python -m benchmarks.hints [--problems N] [--tokens N]      (needs the model of local-cpu: `make run` has fetched it)

What a hint cannot bring about when it is read, distillation cannot teach either: a hint that does not raise the share of
satisfied answers, taken over all personas that may be given it, is to be dropped from judge/prompts/scripted.yaml. A hint is
spliced in as for the teacher (ALGORITHM 1). All wordings of a persona get the same problems and seeds. The table is on stderr,
JSON on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

from openclaw_core.config import load_config
from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.local import LocalEngine
from openclaw_core.engines.protocol import GenerateRequest
from openclaw_core.evaluation.report import Difference
from openclaw_core.feeder.persona import Persona, load_personas
from openclaw_core.feeder.problems import training_problems
from openclaw_core.feeder.rules import is_relevant, meets_style, word_count
from openclaw_core.gateway.rendering import ChatRenderer, splice
from openclaw_core.judge.scripted import ScriptedTable
from openclaw_core.types import FinishReason, Sampling
from openclaw_core.weights.layout import hf_directory


@dataclass(frozen=True)
class Found:
    """The answers to one wording."""

    n: int
    satisfied: int
    relevant: int
    ended: int
    words: float

    def row(self) -> dict[str, Any]:
        """Shares, as they are printed."""
        shares = {name: round(getattr(self, name) / self.n, 3) for name in ("satisfied", "relevant", "ended")}
        return {**shares, "words": round(self.words, 1)}


class Bench:
    """One model, many prompts."""

    def __init__(self, config: RunConfig, problems: int, tokens: int) -> None:
        directory = hf_directory(config)
        self.config, self.tokens = config, tokens
        self.renderer = ChatRenderer.from_pretrained(directory)
        self.engine = LocalEngine(
            directory, dtype="bf16", threads=config.engine.threads, max_batch=64, context_length=config.model.context_length
        )
        self.questions = [problem.question for problem in islice(training_problems(config), problems)]
        self.quotes = dict[str, list[str]]()

    async def wording(self, persona: Persona, previous: list[str], hint: str | None) -> tuple[Found, list[str]]:
        """Answers to the persona's first messages, the hint spliced in where there is one."""
        words = self.config.feeder.quote_words
        openings = [persona.open(question, text, words) for question, text in zip(self.questions, previous, strict=True)]
        answers = await asyncio.gather(*(self._answer(opening, hint, seed) for seed, opening in enumerate(openings)))
        asked = list(zip(answers, self.questions, strict=True))
        relevant = [is_relevant(persona.relevance, text, question) for (text, _), question in asked]
        satisfied = [good and meets_style(persona.style, text) for good, ((text, _), _) in zip(relevant, asked, strict=True)]
        found = Found(
            n=len(asked),
            satisfied=sum(satisfied),
            relevant=sum(relevant),
            ended=sum(ended for (_, ended), _ in asked),
            words=sum(word_count(text) for (text, _), _ in asked) / len(asked),
        )
        return found, [text for text, _ in answers]

    async def _answer(self, message: str, hint: str | None, seed: int) -> tuple[str, bool]:
        rendering = self.renderer.render([{"role": "user", "content": message}])
        ids = rendering.prompt_ids
        if hint is not None:
            assert rendering.hint_offset is not None
            ids = splice(ids, rendering.hint_offset, self.renderer.hint_ids(hint, self.config.judge.hint_label))
        sampling = Sampling(temperature=self.config.rollout.temperature, max_new_tokens=self.tokens, seed=seed)
        request = GenerateRequest(f"hint-{seed}", ids, sampling, self.renderer.stop_token_ids)
        out, ended = list[int](), False
        async for piece in self.engine.generate(request):
            out += piece.token_ids
            ended = piece.finish_reason is FinishReason.STOP
        return self.renderer.parse(tuple(out), ids).text, ended


async def measure(bench: Bench, table: ScriptedTable, personas: tuple[Persona, ...]) -> list[dict[str, Any]]:
    """A row a persona and wording; the first of each persona is without a hint."""
    rows: list[dict[str, Any]] = []
    previous = [""] * len(bench.questions)
    for persona in personas:
        plain, answers = await bench.wording(persona, previous, None)
        rows.append({"persona": persona.name, "about": "", "hint": "", **plain.row(), "gain": None, "interval": None})
        say(rows[-1])
        for about, hint in wordings(table, persona):
            found, _ = await bench.wording(persona, previous, hint)
            change = Difference.of(plain.satisfied, plain.n, found.satisfied, found.n)
            interval = [round(change.low, 3), round(change.high, 3)]
            rows.append({"persona": persona.name, "about": about, "hint": hint, **found.row()})
            rows[-1] |= {"gain": round(change.difference, 3), "interval": interval}
            say(rows[-1])
        previous = answers
    return rows


def wordings(table: ScriptedTable, persona: Persona) -> list[tuple[str, str]]:
    """(topic, hint) for what this persona can complain of."""
    said = " ".join((*persona.complaints.style, *persona.complaints.relevance)).lower()
    meant = [complaint for complaint in table.complaints if any(phrase in said for phrase in complaint.phrases)]
    return [(complaint.about, hint) for complaint in meant for hint in complaint.hints]


def pooled_gains(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Each hint's gain, averaged over the personas that may be given it."""
    gains: dict[str, list[float]] = {}
    for row in rows:
        if row["hint"]:
            gains.setdefault(row["hint"], []).append(row["gain"])
    return {hint: round(fmean(found), 3) for hint, found in gains.items()}


def say(row: dict[str, Any]) -> None:
    """One line of the table."""
    gain = "" if row["gain"] is None else f"{row['gain']:+.3f} {row['interval']}"
    shares = "  ".join(f"{name} {row[name]:.2f}" for name in ("satisfied", "relevant", "ended"))
    print(f"{row['persona']:8} {shares}  {row['words']:5.1f} words  {gain:26} {row['hint']}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print; exit code 1 where a hint does not raise the satisfied share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--tokens", type=int, help="default: rollout.max_response_tokens")
    arguments = parser.parse_args()
    config = load_config("local-cpu")
    if not hf_directory(config).exists():
        sys.exit("the model is not there; run `make run STEPS=1` first")
    bench = Bench(config, arguments.problems, arguments.tokens or config.rollout.max_response_tokens)
    personas = load_personas(config.feeder.persona_set, config.feeder.personas)
    rows = asyncio.run(measure(bench, ScriptedTable.load(), personas))
    gains = pooled_gains(rows)
    useless = [hint for hint, gain in gains.items() if gain <= 0]
    result = {"benchmark": "hints", "problems": arguments.problems, "tokens": bench.tokens, "rows": rows}
    print(json.dumps({**result, "gains": gains, "useless": useless, "met": not useless}))
    sys.exit(1 if useless else 0)


if __name__ == "__main__":
    main()
