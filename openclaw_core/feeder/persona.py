"""Personas as data: who asks, what they want, what they say. The files in personas/ are the one place for all of it.

The simulator reacts by them, the evaluation counts by them, the documentation quotes them.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from openclaw_core.feeder.errors import PersonaError

PERSONAS = Path(__file__).parent / "personas"

Texts = Annotated[tuple[str, ...], Field(min_length=1)]


class Part(BaseModel):
    """A part of a persona file: frozen, and an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StyleRule(Part):
    """How the persona wants an answer to be. All demands that are made must be met."""

    no_markdown: bool = False
    """No bold, lists, headings, code or LaTeX."""
    one_paragraph: bool = False
    """No line break."""
    min_words: int = Field(0, ge=0)
    warm_phrases: tuple[str, ...] = ()
    """At least one of them occurs, as whole words."""

    @model_validator(mode="after")
    def _demands(self) -> Self:
        if not (self.no_markdown or self.one_paragraph or self.min_words or self.warm_phrases):
            raise ValueError("a style rule that demands nothing has nothing to teach; set one of its fields")
        return self


class RelevanceRule(Part):
    """Whether an answer is about the question at all: without it a style is learned at the price of the content."""

    min_words: int = Field(ge=1)
    min_numbers: int = Field(0, ge=0)
    """Numbers written in digits in the question that the answer names, in digits or words."""
    min_overlap: int = Field(0, ge=0)
    """Numbers and content words that question and answer share."""

    @model_validator(mode="after")
    def _demands(self) -> Self:
        if not (self.min_numbers or self.min_overlap):
            raise ValueError("set min_numbers or min_overlap: length alone does not tell what an answer is about")
        return self


class Complaints(Part):
    """What the persona says about an answer that breaks its style, and about one beside the point."""

    style: Texts
    relevance: Texts


class Persona(Part):
    """One simulated person. It never sees the right answer of a problem."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    description: str
    preference: str
    """The rule in words, for people."""
    style: StyleRule
    relevance: RelevanceRule
    first_message: str
    """Template with ``{question}`` and, after the first of the chain, ``{quote}``: words of the previous person's result."""
    complaints: Complaints
    thanks: Texts

    @field_validator("first_message")
    @classmethod
    def _known_slots(cls, template: str) -> str:
        slots = _slots(template)
        if not {"question"} <= slots <= {"question", "quote"}:
            raise ValueError(f"has the slots {sorted(slots)}; needed is {{question}}, allowed is {{quote}} too")
        return template

    @property
    def quotes(self) -> bool:
        """Whether the first message quotes the previous person's result."""
        return "quote" in _slots(self.first_message)

    def open(self, question: str, previous: str, quote_words: int) -> str:
        """The first message: the question and the first ``quote_words`` words of the previous person's result."""
        quote = " ".join(previous.split()[:quote_words])
        return self.first_message.format(question=question, quote=quote)


def load_personas(directory: str, names: Sequence[str]) -> tuple[Persona, ...]:
    """The personas ``names`` of the set ``directory``, as one chain: each may quote the one before it.

    Raises:
        PersonaError: a missing or malformed file, or a first persona that quotes nobody.
    """
    root = PERSONAS / directory
    personas = tuple(_load(root / f"{name}.yaml") for name in names)
    if not personas:
        raise PersonaError("no personas are named; give one at least, as in feeder.personas=[student]")
    if personas[0].quotes:
        raise PersonaError(f"{names[0]} quotes the person before it, but is the first of the chain {', '.join(names)}")
    return personas


def _load(path: Path) -> Persona:
    if not path.is_file():
        known = sorted(f"{file.parent.name}/{file.stem}" for file in PERSONAS.glob("*/*.yaml"))
        raise PersonaError(f"no persona {path.parent.name}/{path.stem}; there are: {', '.join(known)}")
    try:
        persona = Persona.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise PersonaError(f"persona file {path}: {error}") from error
    if persona.name != path.stem:
        raise PersonaError(f"persona file {path} is named otherwise inside: {persona.name!r}")
    return persona


def _slots(template: str) -> set[str]:
    try:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ValueError(f"is no template: {error}") from error
