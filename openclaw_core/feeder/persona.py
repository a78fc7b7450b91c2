"""Personas as data: who asks, what they want, what they say. The files in personas/ are the one place for all of it.

The simulator reacts by them, the evaluation counts by them, the documentation quotes them.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from openclaw_core.feeder.errors import PersonaError
from openclaw_core.feeder.texts import first_words

PERSONAS = Path(__file__).parent / "personas"

Texts = Annotated[tuple[str, ...], Field(min_length=1)]


class Part(BaseModel):
    """A part of a persona file: frozen, and an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StyleRule(Part):
    """How the persona wants an answer to be. All demands that are made must be met."""

    no_markdown: bool = False
    """No bold, lists, headings, step labels, code or LaTeX."""
    one_paragraph: bool = False
    """No line break."""
    min_words: int = Field(0, ge=0)
    """Each Chinese character is one."""
    warm_phrases: tuple[str, ...] = ()
    """At least one of them occurs, English ones as whole words."""
    max_words: int | None = Field(None, ge=1)
    patterns: tuple[re.Pattern[str], ...] = ()
    """Regular expressions that are all found in the answer, in any case; ^ and $ are its ends."""
    forbidden: tuple[re.Pattern[str], ...] = ()
    """Regular expressions none of which is found in it."""

    @field_validator("patterns", "forbidden", mode="before")
    @classmethod
    def _any_case(cls, patterns: Any) -> Any:
        try:
            return tuple(re.compile(it, re.IGNORECASE) if isinstance(it, str) else it for it in patterns)
        except re.error as error:
            raise ValueError(f"pattern {error.pattern!r} is no regular expression: {error}") from error

    @model_validator(mode="after")
    def _demands(self) -> Self:
        if not any(self.model_dump().values()):
            raise ValueError("a style rule that demands nothing has nothing to teach; set one of its fields")
        if self.max_words is not None and self.max_words < self.min_words:
            raise ValueError(f"no answer has at least {self.min_words} and at most {self.max_words} words")
        return self


class RelevanceRule(Part):
    """Whether an answer is about the question at all: without it a style is learned at the price of the content."""

    min_words: int = Field(ge=1)
    min_numbers: int = Field(0, ge=0)
    """Numbers written in digits in the question that the answer names, in digits or words."""
    min_overlap: int = Field(0, ge=0)
    """Numbers, English word stems and pairs of Chinese characters that question and answer share."""

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
    language: Literal["en", "zh"] = "en"
    """Of the texts, and of what a model that plays the persona is told."""
    description: str
    """The role: who this is, and how they talk."""
    preference: str
    """The style rule in words, for people and for a model that plays the persona. The assistant is never told."""
    style: StyleRule
    relevance: RelevanceRule
    first_message: str
    """Template with ``{question}`` and, after the first of the chain, ``{quote}``: words of the previous person's result."""
    first_message_with_files: str | None = None
    """The same for an assistant with file tools, which may find both in the files instead. None: ``first_message``."""
    files: dict[str, str] = Field(default_factory=dict)
    """What this person lays into the workspace of an assistant with file tools: name → template with ``{question}``."""
    closing_request: str | None = None
    """With files: what is asked at the end of a session, such as to write the result down for the next person."""
    conduct: tuple[str, ...] = ()
    """Rules of conduct for a model that plays the persona, beside those that hold for all (prompts/)."""
    complaints: Complaints
    """What is said of an answer; examples of the tone where a model plays the persona."""
    thanks: Texts
    sentinel: str | None = Field(None, pattern=r"^[A-Z][A-Z0-9_]+$")
    """The word that ends a session; it comes with the thanks. A persona that a model plays needs one."""

    @field_validator("first_message")
    @classmethod
    def _known_slots(cls, template: str) -> str:
        slots = _slots(template)
        if not {"question"} <= slots <= {"question", "quote"}:
            raise ValueError(f"has the slots {sorted(slots)}; needed is {{question}}, allowed is {{quote}} too")
        return template

    @field_validator("first_message_with_files")
    @classmethod
    def _known_slots_with_files(cls, template: str | None) -> str | None:
        if template is not None and not _slots(template) <= {"question", "quote"}:
            raise ValueError(f"has the slots {sorted(_slots(template))}; allowed are {{question}} and {{quote}}")
        return template

    @field_validator("files")
    @classmethod
    def _known_files(cls, files: dict[str, str]) -> dict[str, str]:
        for name, template in files.items():
            path = Path(name)
            if path.is_absolute() or ".." in path.parts or not path.name:
                raise ValueError(f"file name {name!r}: it must be relative and stay in the workspace, as homework/problem.txt")
            if not _slots(template) <= {"question"}:
                raise ValueError(f"file {name} has the slots {sorted(_slots(template))}; allowed is {{question}}")
        return files

    @property
    def quotes(self) -> bool:
        """Whether the first message quotes the previous person's result."""
        return "quote" in _slots(self.first_message)

    def open(self, question: str, previous: str, quote_words: int, with_files: bool = False) -> str:
        """The first message: the question and the first ``quote_words`` words of the previous person's result."""
        template = (with_files and self.first_message_with_files) or self.first_message
        return template.format(question=question, quote=first_words(previous, quote_words))

    def brings(self, question: str) -> dict[str, str]:
        """The files that this person lays into the workspace: name → text."""
        return {name: template.format(question=question) for name, template in self.files.items()}

    def thank(self, words: str) -> str:
        """The last word of a satisfied person: ``words``, then the sentinel if there is one."""
        return f"{words} {self.sentinel}" if self.sentinel else words


def load_personas(directory: str, names: Sequence[str]) -> tuple[Persona, ...]:
    """The personas ``names`` of one set, as one chain: each may quote the one before it.

    ``directory``: the name of a shipped set, or the path of a directory of one's own, with a slash in it.

    Raises:
        PersonaError: a missing or malformed file, or a first persona that quotes nobody.
    """
    root = PERSONAS / directory if _is_shipped(directory) else Path(directory)
    personas = tuple(_load(root / f"{name}.yaml") for name in names)
    if not personas:
        raise PersonaError("no personas are named; give one at least, as in feeder.personas=[student]")
    if personas[0].quotes:
        raise PersonaError(f"{names[0]} quotes the person before it, but is the first of the chain {', '.join(names)}")
    return personas


def _load(path: Path) -> Persona:
    root = path.parent
    if not root.is_dir():
        sets = ", ".join(sorted(there.name for there in PERSONAS.iterdir()))
        raise PersonaError(f"no persona set {root.name!r}; there are: {sets}; a directory of your own has a slash in its name")
    if not path.is_file():
        known = sorted(f"{root.name}/{file.stem}" for file in root.glob("*.yaml"))
        raise PersonaError(f"no persona {root.name}/{path.stem}; there are: {', '.join(known) or 'none'} (in {root})")
    try:
        persona = Persona.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise PersonaError(f"persona file {path}: {error}") from error
    if persona.name != path.stem:
        raise PersonaError(f"persona file {path} is named otherwise inside: {persona.name!r}")
    return persona


def _is_shipped(directory: str) -> bool:
    return re.fullmatch(r"[\w-]+", directory) is not None


def _slots(template: str) -> set[str]:
    try:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ValueError(f"is no template: {error}") from error
