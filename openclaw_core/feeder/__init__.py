"""Simulated people: personas as data, word problems, and the feeder that sends them to the gateway."""

from openclaw_core.feeder.errors import FeederError, PersonaError, ProblemError
from openclaw_core.feeder.feeder import feed_gateway, run_feeder
from openclaw_core.feeder.persona import Persona, load_personas
from openclaw_core.feeder.problems import Problem, held_out_problems, training_problems
from openclaw_core.feeder.summary import FeederSummary

__all__ = [
    "FeederError",
    "FeederSummary",
    "Persona",
    "PersonaError",
    "Problem",
    "ProblemError",
    "feed_gateway",
    "held_out_problems",
    "load_personas",
    "run_feeder",
    "training_problems",
]
