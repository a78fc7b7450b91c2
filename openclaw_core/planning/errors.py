"""The package's exception type."""

from openclaw_core.errors import OpenClawError


class PlanError(OpenClawError):
    """There is nothing to count: the model is unknown or the ranks have no place. The message has the sum that fails."""
