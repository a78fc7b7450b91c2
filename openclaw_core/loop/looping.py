"""Sessions that run in circles: the same call, or the same answer, again and again.

A policy that is rewarded within such a loop learns to stay in it, so the session is kept out of training from there on.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from openclaw_core.ledger import Ledger
from openclaw_core.types import Turn


def signature(turn: Turn) -> str:
    """What a turn did, so that two turns that did the same have the same signature.

    Its tool calls by name and arguments, whatever it said beside them; the text where it called none. White space and case
    of a text do not matter, nor does the order of a call's arguments.
    """
    if turn.tool_calls:
        what = "calls", json.dumps([_call(call) for call in turn.tool_calls], sort_keys=True, ensure_ascii=False)
    else:
        what = "answer", " ".join(turn.answer.casefold().split())
    return hashlib.blake2b("\0".join(what).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def repeats(ledger: Ledger, turn: Turn, times: int) -> bool:
    """Whether the last ``times`` answers of the turn's session, this one included, did the same."""
    last = ledger.session_facts.signatures(turn.session_id, times)
    return len(last) == times and len(set(last)) == 1


def _call(call: dict[str, Any]) -> list[Any]:
    function = call.get("function", {})
    arguments = function.get("arguments", "")
    try:
        arguments = json.loads(arguments)
    except (TypeError, ValueError):
        arguments = " ".join(str(arguments).split())  # no JSON: as the model wrote it
    return [function.get("name"), arguments]
