"""Personas played by a language model behind an OpenAI-compatible API, within the bounds of their files.

The model is told the persona's texts and never a problem's answer. What it writes is looked at before it is sent: a message
that is empty or gives the answer away is asked for again once.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from openclaw_core.config.feedback import FeederConfig
from openclaw_core.feeder.errors import FeederError, PersonaError, TaskFailed
from openclaw_core.feeder.patient import PatientClient
from openclaw_core.feeder.persona import Part, Persona
from openclaw_core.feeder.problems import Problem
from openclaw_core.feeder.rules import is_relevant, meets_style
from openclaw_core.feeder.simulator import Reaction
from openclaw_core.feeder.texts import digit_numbers, numbers
from openclaw_core.types import Message

PROMPTS = Path(__file__).parent / "prompts"
ONE = "1"
"""The one number whose words are too common to give anything away."""
KEY_ADVICE = (
    "set OPENCLAW_SIMULATOR_API_KEY or ARK_API_KEY where the run is started, or name a Simulator block in the flow's parameters"
)
_THOUGHTS = re.compile(r"^.*</think>|<think>.*$", re.DOTALL)


class Frame(Part):
    """What every played persona is told, in one language: ``prompts/<language>.yaml``."""

    system: str
    begin: str
    answer: str
    again: str
    faults: dict[str, str]


class SimulatorModel:
    """The model that plays the people: one pooled client, a bound on the calls at once, retries with back-off."""

    def __init__(self, feeder: FeederConfig, api_key: str | None) -> None:
        """Raises FeederError without a key."""
        if not api_key:
            raise FeederError(f"feeder.simulator=openai needs the key of its API: {KEY_ADVICE}")
        deadline_s = feeder.simulator_deadline_s
        self._client = PatientClient(feeder.simulator_url, api_key, timeout_s=deadline_s, patience_s=5 * deadline_s, hasty=True)
        self._model = feeder.simulator_model
        self._max_tokens = feeder.simulator_max_tokens
        self._places = asyncio.Semaphore(feeder.simulator_max_concurrent)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def write(self, messages: list[Message]) -> str:
        """The next message of the conversation, without the model's thoughts.

        Raises:
            TaskFailed: the API refused the request, or stayed away for too long.
            FeederError: the API does not accept the key.
        """
        body = {"model": self._model, "messages": messages, "max_tokens": self._max_tokens}

        async def ask() -> str:
            completion = await self._client.openai.chat.completions.create(**cast(Any, body))
            return completion.choices[0].message.content or ""

        async with self._places:
            text = await self._client.request("simulator", ask)
        return _THOUGHTS.sub("", text).strip()


@dataclass
class PlayedPersona:
    """Speaks Simulator: one person in one session, played by ``model``."""

    persona: Persona
    problem: Problem
    """Of its answer the model learns nothing; it is here to see that no message gives it away."""
    opening: str
    model: SimulatorModel
    _history: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._frame = load_frame(self.persona.language)
        self._history = [
            {"role": "system", "content": system_prompt(self.persona, self.problem.question)},
            {"role": "user", "content": self._frame.begin},
            {"role": "assistant", "content": self.opening},
        ]

    async def first(self) -> str:
        """The template of the persona file: a model's own words might tell what the persona wants."""
        return self.opening

    async def react(self, answer: str) -> Reaction:
        """Raises TaskFailed where the model twice writes what cannot be sent, and as SimulatorModel.write does."""
        self._history.append({"role": "user", "content": self._frame.answer.format(answer=answer)})
        text = await self.model.write(self._history)
        if fault := self._fault(text):
            again: list[Message] = [{"role": "user", "content": self._frame.again.format(fault=fault)}]
            draft: list[Message] = [{"role": "assistant", "content": text}] if text else []
            text = await self.model.write([*self._history, *draft, *again])
            if fault := self._fault(text):
                raise TaskFailed(
                    f"the model that plays {self.persona.name} twice wrote what cannot be sent; now {fault}: {text!r}"
                )
        self._history.append({"role": "assistant", "content": text})
        relevant = is_relevant(self.persona.relevance, answer, self.problem.question)
        satisfied = relevant and meets_style(self.persona.style, answer)
        done = self.persona.sentinel is not None and self.persona.sentinel in text
        return Reaction(satisfied=satisfied, relevant=relevant, done=done, message=text)

    def _fault(self, text: str) -> str | None:
        """Why a message cannot be sent, or None."""
        if not text:
            return self._frame.faults["empty"]
        told = leaked(text, self.problem.question, self.problem.answer)
        return self._frame.faults["leak"].format(numbers=", ".join(sorted(told))) if told else None


def leaked(text: str, question: str, answer: str) -> set[str]:
    """Numbers of a problem's answer that a text gives away: in digits or words, and not in the question."""
    secret = digit_numbers(answer) - numbers(question)
    return (digit_numbers(text) & secret) | (numbers(text) & (secret - {ONE}))


def system_prompt(persona: Persona, question: str) -> str:
    """What the model is told of the persona and of the matter. Raises PersonaError without a sentinel."""
    if persona.sentinel is None:
        raise PersonaError(
            f"persona {persona.name} has no sentinel, by which a model that plays it ends a session; give it one"
        )
    complaints = (*persona.complaints.style, *persona.complaints.relevance)
    return load_frame(persona.language).system.format(
        description=persona.description,
        preference=persona.preference,
        question=question,
        complaints=_listed(complaints),
        thanks=_listed([persona.thank(words) for words in persona.thanks]),
        sentinel=persona.sentinel,
        conduct=_listed(persona.conduct),
    )


@cache
def load_frame(language: str) -> Frame:
    """What every persona is told in this language."""
    return Frame.model_validate(yaml.safe_load((PROMPTS / f"{language}.yaml").read_text(encoding="utf-8")))


def _listed(texts: Any) -> str:
    return "\n".join(f"- {text}" for text in texts)
