"""The common ground of the project's own errors.

Each package has one exception type below this; its message names the value, what is allowed and what to do, so the
command line shows it alone, without a traceback.
"""

from __future__ import annotations

from typing import ClassVar


class OpenClawError(Exception):
    """Something is wrong that a person can mend."""

    exit_code: ClassVar[int] = 1
    """Of a command that ends with it: 2 where the command itself was wrong, 3 where a run's service does not answer."""
