"""The exception types of this package."""

from __future__ import annotations

from openclaw_core.errors import OpenClawError


class WeightsError(OpenClawError):
    """Weights could not be read, converted or written; the message names the file or tensor and what to do."""


class SourceError(WeightsError):
    """A model source that cannot be read: the message names the value, what is allowed and what to do."""


class ModelError(WeightsError):
    """A model that this trainer does not support: the message names the field of config.json and what is allowed."""


class PublishError(WeightsError):
    """Weights did not reach an engine; the message names the group, the bucket and its peers. The trainer is not affected."""
