"""What the next state says about an answer: M votes on two questions → a verdict and hints."""

from openclaw_core.judge.build import build_judge
from openclaw_core.judge.client import (
    Ballot,
    JudgeClient,
    JudgeDenied,
    JudgeError,
    JudgeOverflow,
    JudgeRefused,
    JudgeReply,
    JudgeUnavailable,
)
from openclaw_core.judge.judge import Judge
from openclaw_core.judge.scripted import ScriptedJudge

__all__ = [
    "Ballot",
    "Judge",
    "JudgeClient",
    "JudgeDenied",
    "JudgeError",
    "JudgeOverflow",
    "JudgeRefused",
    "JudgeReply",
    "JudgeUnavailable",
    "ScriptedJudge",
    "build_judge",
]
