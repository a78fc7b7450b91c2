"""Where word problems come from: a generator, a file, or a data set of the Hugging Face hub."""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Literal, Protocol

from openclaw_core.feeder.errors import ProblemError
from openclaw_core.feeder.rows import Candidate, read_problems

Split = Literal["train", "held_out"]

GSM8K = "hf://openai/gsm8k/main"
ALLOWED = (
    "gsm_symbolic, gsm8k, hf://<org>/<name>[@<revision>][/<folder>], or file:///<problems> ending in .json, .jsonl or .parquet"
)


class ProblemSource(Protocol):
    """Gives passes over its problems for ever; a pass may itself be endless."""

    @property
    def name(self) -> str:
        """Short name, part of the problems' ids."""
        ...

    @property
    def endless(self) -> bool:
        """The first pass does not end."""
        ...

    def passes(self, split: Split, seed: int) -> Iterator[Iterator[Candidate]]:
        """One iterator a pass, all determined by split and seed. Raises ProblemError."""
        ...


@dataclass(frozen=True)
class GsmSymbolic:
    """Grade-school templates with drawn numbers (reasoning-gym's ``gsm_symbolic``): one endless pass.

    Splits and seeds draw from ranges of their own. The templates are the same in all of them.
    """

    name: str = "gsm_symbolic"
    endless: bool = True

    CHUNK = 400
    SEED_STRIDE = 10_000_000
    """Items before one seed runs into the next: item i of a data set is drawn from ``Random(seed + i)``."""
    HELD_OUT_BASE = 1 << 48
    SUFFIXES = (" Give the result as your final answer.", " Do not include units.")

    def passes(self, split: Split, seed: int) -> Iterator[Iterator[Candidate]]:
        yield self._items((self.HELD_OUT_BASE if split == "held_out" else 0) + seed * self.SEED_STRIDE)

    def _items(self, base: int) -> Iterator[Candidate]:
        try:
            import reasoning_gym
        except ImportError as error:
            raise ProblemError("problems=gsm_symbolic needs the package reasoning-gym; install the extra 'cpu'") from error
        while True:
            for item in reasoning_gym.create_dataset("gsm_symbolic", size=self.CHUNK, seed=base):
                question = item["question"]
                for suffix in self.SUFFIXES:
                    question = question.replace(suffix, "")
                yield question.strip(), item["answer"]
            base += self.CHUNK


class Shuffled(ABC):
    """Finite problems: endless passes, each shuffled anew."""

    endless = False

    def passes(self, split: Split, seed: int) -> Iterator[Iterator[Candidate]]:
        # Read at once, not at the first problem: whoever opens the stream waits for a download, nobody who asks for a problem.
        rows, rng = self._rows(split), random.Random(f"{split}:{seed}")
        return (iter(rng.sample(rows, len(rows))) for _ in count())

    @abstractmethod
    def _rows(self, split: Split) -> list[Candidate]: ...


@dataclass(frozen=True)
class ProblemFile(Shuffled):
    """A file on this machine. Both splits come from its rows; a training stream excludes the held-out ones by their text."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    def _rows(self, split: Split) -> list[Candidate]:
        return self._all

    @cached_property
    def _all(self) -> list[Candidate]:
        return read_problems(self.path)


@dataclass(frozen=True)
class HubProblems(Shuffled):
    """Parquet files of a data set on the hub, cached as the hub's own client caches.

    Their names say which split they are of, as in ``train-00000-of-00001.parquet``. Held-out problems come from test, or from
    validation, or else from train; a training stream excludes them by their text anyway.
    """

    repository: str
    revision: str | None
    folder: str | None

    FOLDERS = ("main", "default", "data")
    """Where the files are looked for when no folder is named; the first that has some counts."""

    @property
    def name(self) -> str:
        return self.repository.rpartition("/")[2]

    def _rows(self, split: Split) -> list[Candidate]:
        wanted = ("test", "validation", "train") if split == "held_out" else ("train",)
        by_split = {name: [file for file in self._files if re.match(rf"{name}\b", file.name)] for name in wanted}
        found = next((files for files in by_split.values() if files), None)
        if found is None:
            there = ", ".join(file.name for file in self._files)
            raise ProblemError(f"{self._spec} has no file of the split {' or '.join(wanted)}; its Parquet files are: {there}")
        return [row for file in found for row in read_problems(file)]

    @property
    def _spec(self) -> str:
        revision, folder = self.revision and f"@{self.revision}", self.folder and f"/{self.folder}"
        return f"hf://{self.repository}{revision or ''}{folder or ''}"

    @cached_property
    def _files(self) -> list[Path]:
        folders = self.FOLDERS if self.folder is None else (self.folder,)
        root = self._download([f"{folder}/*.parquet" for folder in folders])
        for folder in folders:
            if files := sorted((root / folder).glob("*.parquet")):
                return files
        raise ProblemError(f"{self._spec} has no Parquet files in the folder {' or '.join(folders)}; name another: {ALLOWED}")

    def _download(self, patterns: list[str]) -> Path:
        try:
            from huggingface_hub import snapshot_download
            from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
        except ImportError as error:
            raise ProblemError(f"{self._spec} needs the package huggingface_hub; install the extra 'data'") from error
        try:
            path = snapshot_download(self.repository, repo_type="dataset", revision=self.revision, allow_patterns=patterns)
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            raise ProblemError(
                f"{self._spec} cannot be downloaded: {error}. Check name, revision, access and network, or give the problems "
                f"as a file: {ALLOWED}"
            ) from error
        return Path(path)


def open_source(spec: str) -> ProblemSource:
    """The source that ``feeder.problems`` names; nothing is read yet. Raises ProblemError for a name of no known form."""
    if spec == "gsm_symbolic":
        return GsmSymbolic()
    if spec.startswith("file://"):
        return ProblemFile(Path(spec.removeprefix("file://")))
    if match := re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/([\w.-]+))?", GSM8K if spec == "gsm8k" else spec):
        return HubProblems(*match.groups())
    raise ProblemError(f"no problem source {spec!r}; there are: {ALLOWED}")
