"""The service's log as it grows, line by line."""

from __future__ import annotations

import logging

from openclaw_core.cluster.log_lines import LogLine, LogLines

READY = 'timestamp="2026-11-30 13:58:37" level=info event=service_ready run=r gateway=30000\n'
TURN = 'timestamp="2026-11-30 13:58:53" level=info event=chat_answered turn=fad34 session=s\n'
RANK = '\x1b[36m(TrainerWorker pid=29, ip=10.0.0.1)\x1b[0m timestamp="2026-11-30 13:58:54" level=error event=loss_nan step=3\n'


def test_each_line_comes_once_when_it_is_complete() -> None:
    lines = LogLines()
    assert list(lines.new(1, "")) == []
    assert list(lines.new(1, READY + RANK[:40])) == [LogLine(logging.INFO, "event=service_ready run=r gateway=30000")]
    assert list(lines.new(1, READY + RANK[:60])) == []
    (rank,) = lines.new(1, READY + RANK)
    assert rank == LogLine(logging.ERROR, "(TrainerWorker pid=29, ip=10.0.0.1) event=loss_nan step=3")
    assert list(lines.new(1, READY + RANK)) == []


def test_a_new_attempt_is_read_from_its_start() -> None:
    lines = LogLines()
    assert len(list(lines.new(1, READY + RANK))) == 2
    assert [line.text for line in lines.new(2, READY)] == ["event=service_ready run=r gateway=30000"]


def test_single_turns_are_left_to_the_ledger_and_lines_of_others_kept() -> None:
    other = "Traceback (most recent call last):\n\n  File chat_answered.py\n"
    assert [line.text for line in LogLines().new(1, TURN + other + TURN)] == [
        "Traceback (most recent call last):",
        "  File chat_answered.py",
    ]
