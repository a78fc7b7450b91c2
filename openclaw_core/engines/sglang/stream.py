"""From the pieces of a /generate stream to ``Tokens``: new ids only, each with its log-prob and its weight version.

Pieces are cumulative by default and increments where the server runs with ``--incremental-streaming-output``; in 0.5.10
the log-probs stay cumulative even then, and the last piece of a request that is aborted while it waits holds one id only.
So nothing is inferred from the server's settings: ``completion_tokens`` is a running total in every version, and a list is
the whole answer or the new part of it by its own length. The ids are those of the log-probs; ``output_ids`` must agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from openclaw_core.engines.protocol import EngineError, Tokens, TopLogprobs
from openclaw_core.engines.sglang.errors import Fault, parse_abort, parse_piece
from openclaw_core.types import FinishReason

T = TypeVar("T")

NAN_MARK = "NaN happened"
"""What SGLang calls the stop that it invents when a sampled id is outside the vocabulary; it overwrites that id."""


@dataclass(slots=True)
class AnswerReader:
    """One answer as its pieces come. ``what`` names server and request in errors."""

    what: str
    wants_top: bool = False
    count: int = 0
    """Tokens taken so far."""
    finished: bool = False
    fault: Fault | None = None
    """Why the server gave the answer up, set by its last piece; the tokens of that piece are good."""

    def take(self, piece: Any) -> list[Tokens]:
        """The new tokens of one piece, split where the weight version changes.

        Raises EngineError: an error in the stream, or a piece that contradicts itself or the ones before.
        """
        if (error := parse_piece(piece)) is not None:
            self.finished = True
            raise error.error(self.what, begun=self.count > 0)
        try:
            return self._tokens(piece["meta_info"], piece.get("output_ids"))
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise EngineError(f"{self.what}: a piece of the stream is malformed ({type(error).__name__}: {error})") from error

    def _tokens(self, meta: dict[str, Any], output_ids: Sequence[int] | None) -> list[Tokens]:
        reason = self._finish(meta.get("finish_reason"))
        before, total = self.count, int(meta.get("completion_tokens") or 0)
        if total < before:
            raise EngineError(f"{self.what}: {total} tokens after {before}: the stream went backwards")
        entries = self._new("output_token_logprobs", meta, total)
        ids = tuple(int(entry[1]) for entry in entries)
        self._check_ids(ids, output_ids or ())
        logprobs = tuple(_number(entry[0]) for entry in entries)
        top = tuple(_top(row) for row in self._new("output_top_logprobs", meta, total)) if self.wants_top else ()
        self.count = total
        cuts = self._versions(meta, before, total) if ids else []
        pieces = [
            Tokens(ids[start:end], logprobs[start:end], version, None, top[start:end] if self.wants_top else ())
            for start, end, version in cuts
        ]
        if reason is None:
            return pieces
        if not pieces:
            return [Tokens((), (), _version(self.what, meta["weight_version"]), reason)]
        last = pieces.pop()
        return [*pieces, Tokens(last.token_ids, last.logprobs, last.weight_version, reason, last.top_logprobs)]

    def _finish(self, finish: dict[str, Any] | None) -> FinishReason | None:
        if finish is None:
            return None
        self.finished = True
        kind = finish["type"]
        if kind == "stop" and finish.get("matched") == NAN_MARK:
            raise EngineError(f"{self.what}: the model produced NaN; the weights it serves are broken")
        if kind in ("stop", "length"):
            return FinishReason(kind)
        if kind == "abort":
            self.fault = parse_abort(finish)
            return None
        raise EngineError(f"{self.what}: unknown finish_reason {finish}")

    def _new(self, name: str, meta: dict[str, Any], total: int) -> list[Any]:
        """The entries of tokens ``count`` to ``total`` of a list that is the whole answer's or the new part's."""
        entries, new = meta.get(name) or [], total - self.count
        if len(entries) == total:
            return entries[self.count :]
        if len(entries) == new:
            return entries
        raise EngineError(f"{self.what}: {name} has {len(entries)} entries where {total} tokens are there, {new} of them new")

    def _check_ids(self, ids: tuple[int, ...], output_ids: Sequence[int]) -> None:
        compared = min(len(ids), len(output_ids))
        if compared and tuple(output_ids[-compared:]) != ids[-compared:]:
            raise EngineError(
                f"{self.what}: output_ids end in {list(output_ids[-compared:])}, the log-probs are of {list(ids)}"
            )

    def _versions(self, meta: dict[str, Any], before: int, total: int) -> list[tuple[int, int, int]]:
        """(start, end, version) over the new tokens, counted from ``before``."""
        spans = meta.get("weight_versions")
        if not spans:
            return [(0, total - before, _version(self.what, meta["weight_version"]))]
        cuts = [
            (max(span["start"], before) - before, min(span["end"], total) - before, _version(self.what, span["version"]))
            for span in spans
            if span["end"] > before
        ]
        if sum(end - start for start, end, _ in cuts) != total - before:
            raise EngineError(f"{self.what}: weight_versions {spans} do not cover tokens {before} to {total}")
        return cuts


def _version(what: str, text: Any) -> int:
    if not isinstance(text, str) or not text.isdecimal():
        raise EngineError(
            f"{what}: weight version {text!r} is no number; start the server with --weight-version <n> "
            "or publish to it before it serves"
        )
    return int(text)


def _number(value: Any) -> float:
    """A log-prob; NaN where the server has none, which the turn is dropped for, never 0.0 (probability 1)."""
    return float(value) if value is not None else math.nan


def _top(row: Sequence[Any] | None) -> TopLogprobs:
    return tuple((int(entry[1]), _number(entry[0])) for entry in row or ())
