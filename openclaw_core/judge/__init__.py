"""What the next state says about an answer: M votes on two questions → a verdict and hints."""

from openclaw_core.judge.client import JudgeClient, JudgeError, JudgeUnavailable
from openclaw_core.judge.judge import Judge, build_judge
from openclaw_core.judge.scripted import ScriptedJudge

__all__ = ["Judge", "JudgeClient", "JudgeError", "JudgeUnavailable", "ScriptedJudge", "build_judge"]
