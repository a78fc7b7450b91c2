"""Who plays a persona. The scripted one reacts by the persona's rules; nobody here is shown a problem's answer.

Two things are told apart. Whether an answer is *satisfying* is for the persona's rules alone, whoever plays it: the metrics
count by them. Whether the person is *done* decides the course of the conversation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from openclaw_core.feeder.persona import Persona
from openclaw_core.feeder.rules import is_relevant, meets_style


@dataclass(frozen=True, slots=True)
class Reaction:
    """What the person found of an answer, and the message that says so."""

    satisfied: bool
    """Style and relevance rule of the persona file are met. For the metrics."""
    relevant: bool
    """Its relevance rule is met. For the metrics."""
    done: bool
    """The person has what they want: ``message`` is their last word, with the persona's sentinel if it has one."""
    message: str


class Simulator(Protocol):
    """One person in one session."""

    async def first(self) -> str:
        """The message that opens the session. Raises FeederError."""
        ...

    async def react(self, answer: str) -> Reaction:
        """The reaction to the assistant's latest answer. Raises FeederError."""
        ...


@dataclass
class ScriptedSimulator:
    """Thanks for an answer that meets both rules and is done; else complains of each rule that is broken, style first."""

    persona: Persona
    question: str
    previous: str
    """The previous person's result, of which the first ``quote_words`` words are quoted."""
    quote_words: int
    rng: random.Random
    with_files: bool = False
    """The assistant has file tools."""

    async def first(self) -> str:
        return self.persona.open(self.question, self.previous, self.quote_words, self.with_files)

    async def react(self, answer: str) -> Reaction:
        good_style = meets_style(self.persona.style, answer)
        relevant = is_relevant(self.persona.relevance, answer, self.question)
        if good_style and relevant:
            thanks = self.persona.thank(self.rng.choice(self.persona.thanks))
            return Reaction(satisfied=True, relevant=True, done=True, message=thanks)
        complaints = self.persona.complaints
        broken = [] if good_style else [complaints.style]
        if not relevant:
            broken.append(complaints.relevance)
        message = " ".join(self.rng.choice(texts) for texts in broken)
        return Reaction(satisfied=False, relevant=relevant, done=False, message=message)
