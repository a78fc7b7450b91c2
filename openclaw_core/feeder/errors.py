"""What can go wrong with the simulated people."""

from __future__ import annotations

from openclaw_core.errors import OpenClawError


class FeederError(OpenClawError):
    """The feeder cannot go on; the message says what was asked of whom, and what to do."""


class TaskFailed(FeederError):
    """One task, a chain of sessions on one problem, could not be finished. The feeder goes on with the next."""


class PersonaError(FeederError):
    """A persona file is missing or not of the form that ``persona.Persona`` describes."""


class ProblemError(FeederError):
    """A problem source does not exist, cannot be read or holds too few problems."""
