"""Who plays a persona. The scripted one reacts by the persona's rules; it is shown the question, never its answer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from openclaw_core.feeder.persona import Persona
from openclaw_core.feeder.rules import is_relevant, meets_style


@dataclass(frozen=True, slots=True)
class Reaction:
    """What the person found of an answer, and the message that says so. ``satisfied``: both rules are met."""

    satisfied: bool
    relevant: bool
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
    """Thanks for an answer that meets both rules; else complains of each rule that is broken, style first."""

    persona: Persona
    question: str
    previous: str
    """The previous person's result, of which the first ``quote_words`` words are quoted."""
    quote_words: int
    rng: random.Random

    async def first(self) -> str:
        return self.persona.open(self.question, self.previous, self.quote_words)

    async def react(self, answer: str) -> Reaction:
        good_style = meets_style(self.persona.style, answer)
        relevant = is_relevant(self.persona.relevance, answer, self.question)
        if good_style and relevant:
            return Reaction(satisfied=True, relevant=True, message=self.rng.choice(self.persona.thanks))
        complaints = self.persona.complaints
        broken = [] if good_style else [complaints.style]
        if not relevant:
            broken.append(complaints.relevance)
        return Reaction(satisfied=False, relevant=relevant, message=" ".join(self.rng.choice(texts) for texts in broken))
