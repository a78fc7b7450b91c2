"""The one exception type of this package."""

from __future__ import annotations


class LossError(ValueError):
    """The loss was asked for something that has no value: wrong shapes, non-finite scores, a missing input.

    The message names the value, what is allowed and what to do.
    """
