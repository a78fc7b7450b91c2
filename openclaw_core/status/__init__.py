"""A run at one moment, for `openclaw-rl status`: what its service says, and where that is silent, what it has left behind."""

from openclaw_core.status.picture import Picture, RunState, look
from openclaw_core.status.view import render

__all__ = ["Picture", "RunState", "look", "render"]
