"""What goes wrong between the loop and the ranks of a trainer or scorer."""

from __future__ import annotations

from openclaw_core.errors import OpenClawError


class TrainerError(OpenClawError):
    """A trainer or a scorer failed; the message names the call. Its ranks cannot be used any more: start them anew."""


class RankLost(TrainerError):
    """A rank is stuck, dead or over its deadline, and is named."""
