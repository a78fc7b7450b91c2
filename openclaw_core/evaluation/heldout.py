"""Before and after: held-out problems x personas, asked as side turns with fixed seeds.

The first evaluation of a run makes the prompts: the student's answers come first, since the TA quotes them, and the
teacher quotes the TA. They are stored, so that every later evaluation sees the very same ones.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import structlog
from pydantic import ValidationError

from openclaw_core.config.schema import RunConfig
from openclaw_core.evaluation.asking import SEED_STRIDE, first_answer
from openclaw_core.evaluation.record import EvaluationError, Record
from openclaw_core.evaluation.report import EvalReport, Finding, Tally
from openclaw_core.feeder.client import Answer, GatewayClient
from openclaw_core.feeder.persona import Persona, load_personas
from openclaw_core.feeder.problems import held_out_problems
from openclaw_core.feeder.rules import is_relevant, satisfies
from openclaw_core.feeder.texts import word_count

log = structlog.get_logger()

HELD_OUT_FILE = "heldout.json"
SAMPLES = 3
"""Answers of each persona that a report shows."""


class HeldOut(Record):
    """The prompts of a run's evaluations: the held-out questions, and each persona's first message to each."""

    questions: tuple[str, ...]
    messages: dict[str, tuple[str, ...]]


async def evaluate(
    config: RunConfig, base_url: str, api_key: str, directory: Path, label: str, prompts: HeldOut | None = None
) -> EvalReport:
    """Ask every persona's first message to every held-out problem and count the answers that satisfy.

    ``base_url`` ends in ``/v1``. The report is ``directory/<label>.json``; where it exists it is returned as it is. The
    prompts are ``prompts``, or those in ``directory/heldout.json``; without either they are made with the answers of
    this evaluation, and stored.

    Raises:
        EvaluationError: stored prompts that do not fit the configuration, or a label that is no file name.
        FeederError: bad personas or problems, or a gateway that refuses or stays away.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", label) or f"{label}.json" == HELD_OUT_FILE:
        raise EvaluationError(f"label {label!r} is no name for a report; use letters, digits, dot, dash, as in 'before'")
    report_file = directory / f"{label}.json"
    if report_file.exists():
        return EvalReport.load(report_file)
    personas = load_personas(config.feeder.persona_set, config.feeder.personas)
    questions = tuple(problem.question for problem in held_out_problems(config))
    known = prompts or _stored_prompts(directory)
    if known is not None:
        _require_fit(known, questions, personas)

    messages: dict[str, tuple[str, ...]] = {}
    findings: dict[str, list[Finding]] = {}
    previous = [""] * len(questions)
    async with aclosing(GatewayClient(config, base_url, api_key)) as gateway:
        for index, persona in enumerate(personas):
            asked = known.messages[persona.name] if known else _open(config, persona, questions, previous)
            answers = await _ask(config, gateway, asked, first_seed=config.evaluation.seed + index * SEED_STRIDE)
            previous = [answer.text for answer in answers]
            messages[persona.name] = asked
            findings[persona.name] = _find(persona, questions, asked, answers)
            satisfied = sum(finding.satisfied for finding in findings[persona.name])
            log.info("persona_evaluated", label=label, persona=persona.name, satisfied=satisfied, problems=len(questions))

    directory.mkdir(parents=True, exist_ok=True)
    if known is None:
        HeldOut(questions=questions, messages=messages).write(directory / HELD_OUT_FILE)
    report = _report(config, label, findings)
    report.write(report_file)
    return report


def _open(config: RunConfig, persona: Persona, questions: Sequence[str], previous: Sequence[str]) -> tuple[str, ...]:
    words = config.feeder.quote_words
    return tuple(persona.open(question, text, words) for question, text in zip(questions, previous, strict=True))


async def _ask(config: RunConfig, gateway: GatewayClient, messages: Sequence[str], first_seed: int) -> list[Answer]:
    """One answer to each message, sampled as the preset samples, at most ``evaluation.concurrency`` at once."""
    places = asyncio.Semaphore(config.evaluation.concurrency)

    async def ask(message: str, seed: int) -> Answer:
        async with places:
            return await first_answer(config, gateway, message, seed)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(message, first_seed + n)) for n, message in enumerate(messages)]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


def _find(persona: Persona, questions: Sequence[str], messages: Sequence[str], answers: Sequence[Answer]) -> list[Finding]:
    return [
        Finding(
            persona=persona.name,
            message=message,
            answer=answer.text,
            satisfied=satisfies(persona, answer.text, question),
            relevant=is_relevant(persona.relevance, answer.text, question),
            words=word_count(answer.text),
            truncated=answer.truncated,
            version=answer.version,
        )
        for question, message, answer in zip(questions, messages, answers, strict=True)
    ]


def _report(config: RunConfig, label: str, findings: dict[str, list[Finding]]) -> EvalReport:
    everything = [finding for found in findings.values() for finding in found]
    return EvalReport(
        label=label,
        created_at=time.time(),
        model=config.model.name,
        versions=tuple(sorted({finding.version for finding in everything if finding.version is not None})),
        problems=config.evaluation.problems,
        seed=config.evaluation.seed,
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_response_tokens,
        total=Tally.of(everything),
        personas={name: Tally.of(found) for name, found in findings.items()},
        samples=tuple(finding for found in findings.values() for finding in found[:SAMPLES]),
    )


def _stored_prompts(directory: Path) -> HeldOut | None:
    path = directory / HELD_OUT_FILE
    if not path.exists():
        return None
    try:
        return HeldOut.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise EvaluationError(f"held-out prompts {path} cannot be read: {error}") from error


def _require_fit(prompts: HeldOut, questions: tuple[str, ...], personas: Sequence[Persona]) -> None:
    names = [persona.name for persona in personas]
    if prompts.questions != questions or list(prompts.messages) != names:
        raise EvaluationError(
            f"the stored prompts are {len(prompts.questions)} questions for {', '.join(prompts.messages)}, the configuration "
            f"asks for {len(questions)} for {', '.join(names)}, or for others; evaluate with the run's own configuration"
        )
