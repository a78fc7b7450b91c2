"""Who keeps the books of a feeder: the training service behind the gateway, or, where there is none, a file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from openclaw_core.config.feedback import FeederConfig
from openclaw_core.feeder.errors import FeederError
from openclaw_core.feeder.problems import Problem
from openclaw_core.feeder.simulator import Reaction


class Bookkeeper(Protocol):
    """Knows which problems have been given out, hears how answers were found, and says when it is enough."""

    async def begin(self) -> int:
        """How many problems have been given out before, once there is somebody to feed. Raises FeederError."""
        ...

    async def finished(self) -> bool:
        """Nobody needs to be fed any more. Raises FeederError."""
        ...

    def given(self, problem: Problem) -> None:
        """A task on this problem begins."""
        ...

    def over(self, problem: Problem) -> None:
        """The task on it is over, done or failed; one that is stopped half-way is not."""
        ...

    async def outcome(self, session_id: str, persona: str, reaction: Reaction, first: bool, problem: Problem) -> None:
        """How a persona found an answer. Raises TaskFailed or FeederError."""
        ...

    async def aclose(self) -> None:
        """Give everything back."""
        ...


class Position(BaseModel):
    """The content of a position file: a place in one stream of problems."""

    model_config = ConfigDict(extra="forbid")
    problems: str
    seed: int
    shard: int
    shards: int
    position: int = 0
    """All problems of the shard up to this number are over."""


class PositionFile:
    """Speaks Bookkeeper for a gateway of another make, which is never finished and wants no outcomes.

    Without a ``path`` nothing is kept, and every feeder begins at the first problem.
    """

    def __init__(self, feeder: FeederConfig, path: Path | None) -> None:
        self._path = path
        self._place = Position(problems=feeder.problems, seed=feeder.seed, shard=feeder.shard, shards=feeder.shards)
        self._given: list[int] = []
        """Tasks that are not over, in the order in which they were begun."""
        self._last = 0

    async def begin(self) -> int:
        """The stored position. Raises FeederError for a file that cannot be read, or that is of other problems."""
        if self._path is None or not self._path.exists():
            return 0
        try:
            stored = Position.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError) as error:
            raise FeederError(f"position file {self._path} cannot be read: {error}; remove it to begin anew") from error
        if stored.model_copy(update={"position": 0}) != self._place:
            raise FeederError(
                f"position file {self._path} is of other problems: {stored.model_dump(exclude={'position'})} there, "
                f"{self._place.model_dump(exclude={'position'})} here; name another file, or feed with the same parameters"
            )
        self._last = stored.position
        return stored.position

    async def finished(self) -> bool:
        return False

    def given(self, problem: Problem) -> None:
        self._given.append(problem.number)
        self._last = problem.number

    def over(self, problem: Problem) -> None:
        self._given.remove(problem.number)
        if self._path is not None:
            position = min(self._given) - 1 if self._given else self._last
            part = self._path.with_name(f".{self._path.name}.part")
            part.write_text(json.dumps(self._place.model_dump() | {"position": position}) + "\n")
            part.replace(self._path)

    async def outcome(self, session_id: str, persona: str, reaction: Reaction, first: bool, problem: Problem) -> None:
        await asyncio.sleep(0)

    async def aclose(self) -> None:
        """Nothing is held."""
