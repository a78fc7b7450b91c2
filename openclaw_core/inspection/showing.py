"""One turn in full: what was said, how it was judged, what became of it, and what the loss saw of its tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from openclaw_core.inspection.listing import dash
from openclaw_core.inspection.reader import TurnRecord
from openclaw_core.inspection.text import one_line, printable, shortened
from openclaw_core.inspection.token_view import chosen, separate_scorer, tokens_table
from openclaw_core.inspection.vocabulary import TokenNames
from openclaw_core.ledger_rows import Outcome, StepRecord, TurnStatus
from openclaw_core.trainer.token_table import SampleTokens
from openclaw_core.types import FinishReason, Message, Sampling

SHORT = 400
"""Characters of a message or answer, where not all is wanted."""
SHORT_VOTE = 160
SHORT_TOKENS = 16
"""Response positions of the table."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is about a turn."""

    record: TurnRecord
    step: StepRecord | None
    outcomes: Sequence[Outcome]
    tokens: SampleTokens | None
    no_tokens: str
    """Why there is no table of tokens."""


def turn_view(shown: Shown, names: TokenNames, *, full: bool) -> RenderableType:
    """See the module's docstring; ``full``: nothing is shortened."""
    sections = [_head(shown), *_said(shown, full), *_judged(shown, full), *_tokens(shown, names, full)]
    return Group(*sections)


def _head(shown: Shown) -> RenderableType:
    turn = shown.record.turn
    captured = datetime.fromtimestamp(turn.created_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    tokens = f"{len(turn.prompt_ids)} in the prompt, {len(turn.response_ids)} in the answer"
    rows = {
        "turn": turn.turn_id,
        "session": f"{turn.session_id}, answer {turn.index} of it" + (f", user {turn.user}" if turn.user else ""),
        "captured": f"{captured}, {turn.generate_s:.2f} s in the engine",
        "what became of it": _fate(shown),
        "finish reason": _finish(turn.finish_reason),
        "tokens": tokens,
        "weight versions": _versions(turn.version_spans),
        "sampling": _sampling(turn.sampling),
    }
    if shown.outcomes:
        rows["persona"] = "; ".join(_outcome(outcome) for outcome in shown.outcomes)
    return _pairs(rows.items())


def _fate(shown: Shown) -> str:
    record, step = shown.record, shown.step
    version = "" if step is None or step.version is None else f", whose weights are version {step.version}"
    match record.status:
        case TurnStatus.WAITING:
            return "waiting: nobody has reacted to it yet"
        case TurnStatus.JUDGING:
            return "judging: the judge's votes are outstanding"
        case TurnStatus.READY:
            return "ready: judged, free for a batch"
        case TurnStatus.NO_SIGNAL:
            return "no_signal: judged neither good nor bad, and without a hint"
        case TurnStatus.BATCHED:
            return f"batched: in the batch of step {record.step}, which is not trained yet"
        case TurnStatus.SKIPPED:
            return f"skipped: in step {record.step}, whose update was left out (a gradient was not finite)"
        case TurnStatus.DROPPED:
            at = "" if record.step is None else f", before step {record.step}"
            return f"dropped: {record.drop_reason or 'without a reason'}{at}"
        case TurnStatus.TRAINED:
            masked = shown.tokens.masked if shown.tokens else None
            if masked:
                return f"masked: {masked}; in the batch of step {record.step}, without a share in its gradient"
            return f"trained: in step {record.step}{version}"


def _said(shown: Shown, full: bool) -> Iterator[RenderableType]:
    record = shown.record
    yield _title("conversation")
    for message in record.turn.messages:
        yield _message(message, full)
    yield _title("answer")
    yield _text(record.turn.answer or "(no text)", full)
    yield from (_call(call, full) for call in record.turn.tool_calls)
    state = record.next_state
    yield _title("next state" if state is None else f"next state ({state.role})")
    yield _text("none" if state is None else state.text, full)


def _judged(shown: Shown, full: bool) -> Iterator[RenderableType]:
    judgement = shown.record.judgement
    yield _title("judgement")
    if judgement is None:
        yield _text("none", full)
        return
    judged_at = datetime.fromtimestamp(shown.record.judged_at or 0, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    rows = {"reward r": f"{judgement.reward:+d}", "judge": f"{judgement.model or '-'}, {judged_at}"}
    rows["prompts"] = judgement.prompt_version or "-"
    if judgement.policy:
        rows["without a quorum"] = judgement.policy
    yield _pairs(rows.items())
    yield _title("votes")
    votes = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in ("question", "vote", "s", "tokens"):
        votes.add_column(name, no_wrap=True)
    votes.add_column("what the judge wrote", overflow="fold", ratio=1)
    for vote in judgement.votes:
        value = "none" if vote.value is None else f"{vote.value:+d}"
        seconds = "-" if vote.seconds is None else f"{vote.seconds:.2f}"
        counted = (vote.prompt_tokens, vote.completion_tokens)
        tokens = "-" if counted == (None, None) else "+".join(map(dash, counted))
        raw = printable(vote.raw, lines=True) if full else one_line(vote.raw, SHORT_VOTE)
        votes.add_row(vote.question.value, value, seconds, tokens, Text(raw))
    yield votes
    yield _title("hints")
    yield _hints(shown)


def _hints(shown: Shown) -> RenderableType:
    judgement, tokens = shown.record.judgement, shown.tokens
    assert judgement is not None
    stars = chosen(tokens) if tokens else {}
    candidates = list(tokens.hints) if tokens else []
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("c", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("hint", overflow="fold", ratio=1)
    for index, hint in enumerate(judgement.hints):
        place = candidates.index(hint) if hint in candidates else None
        number = str(index) if tokens is None else dash(place)
        at = stars.get(place, 0) if place is not None else 0
        role = f"c* at {at} tokens" if at else "not a candidate" if tokens and place is None else ""
        table.add_row(number, role, Text(printable(hint)))
    for hint, reason in judgement.refused:
        table.add_row("-", f"refused: {printable(reason)}", Text(printable(hint)))
    return table if judgement.hints or judgement.refused else _text("none", True)


def _tokens(shown: Shown, names: TokenNames, full: bool) -> Iterator[RenderableType]:
    tokens = shown.tokens
    yield _title("tokens")
    if tokens is None:
        yield _text(shown.no_tokens, True)
        return
    if tokens.masked:
        yield _text(f"The sample is masked ({tokens.masked}): nothing below was trained on.", True)
    if separate_scorer(tokens):
        yield _text("delta is taken from the scorer's own pass of the old policy; pi_old and w are the trainer's.", True)
    count = len(tokens.columns.token)
    rows = count if full else min(count, SHORT_TOKENS)
    yield tokens_table(tokens, names, rows)
    if rows < count:
        yield _text(f"… {count - rows} more tokens; --full shows them", True)


def _message(message: Message, full: bool) -> RenderableType:
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    role = str(message.get("role", "?"))
    lines = [_text(text, full)] if text else []
    return Group(Text(f"{printable(role)}:", style="bold"), *lines, *(_call(c, full) for c in message.get("tool_calls") or ()))


def _call(call: dict[str, object], full: bool) -> RenderableType:
    return _text(f"calls {json.dumps(call.get('function', call), ensure_ascii=False)}", full)


def _text(text: str, full: bool) -> RenderableType:
    shown = printable(text, lines=True)
    return Padding(Text(shown if full else shortened(shown, SHORT)), (0, 0, 0, 2))


def _title(text: str) -> RenderableType:
    return Text(f"\n{text}", style="bold cyan")


def _pairs(rows: Iterable[tuple[str, str]]) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold", ratio=1)
    for name, value in rows:
        table.add_row(name, Text(printable(value)))
    return table


def _finish(reason: FinishReason) -> str:
    return f"{reason.value}: the answer was cut off at max_new_tokens" if reason is FinishReason.LENGTH else reason.value


def _versions(spans: Sequence[tuple[int, int]]) -> str:
    parts: list[str] = []
    begin = 0
    for version, count in spans:
        parts.append(f"{version} (tokens {begin} to {begin + count - 1})")
        begin += count
    return ", then ".join(parts)


def _sampling(sampling: Sampling) -> str:
    """Temperature and length always, the rest where it is not neutral."""
    parts = [f"temperature {sampling.temperature:g}", f"max_new_tokens {sampling.max_new_tokens}"]
    neutral = Sampling(sampling.temperature, sampling.max_new_tokens)
    for name in ("top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed", "stop"):
        if (value := getattr(sampling, name)) != getattr(neutral, name):
            parts.append(f"{name} {value}")
    return ", ".join(parts) + ("; shaped" if sampling.shaped else "")


def _outcome(outcome: Outcome) -> str:
    which = "first answer" if outcome.first else "answer"
    words = [
        ("" if flag else "not ") + name for flag, name in ((outcome.satisfied, "satisfied"), (outcome.relevant, "relevant"))
    ]
    return f"{outcome.persona}, problem {outcome.problem}: {which} {', '.join(words)}"
