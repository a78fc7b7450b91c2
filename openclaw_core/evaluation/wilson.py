"""Intervals for shares: Wilson's for one proportion, Newcombe's for the difference of two.

Sources: E. B. Wilson, JASA 22 (1927) 209; R. G. Newcombe, Statistics in Medicine 17 (1998) 857 (method 3) and 873
(method 10, the hybrid score interval). Both without continuity correction.
"""

from __future__ import annotations

from math import sqrt

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal."""

Interval = tuple[float, float]


def wilson(successes: int, n: int, z: float = Z95) -> Interval:
    """Interval of a share of ``successes`` out of ``n``. Raises ValueError unless 0 <= successes <= n and n >= 1."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"{successes} of {n} is no share; needed: 0 <= successes <= n and n >= 1")
    p = successes / n
    scale = 1 + z * z / n
    center = (p + z * z / (2 * n)) / scale
    half = z / scale * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return min(p, max(0.0, center - half)), max(p, min(1.0, center + half))


def newcombe(before: int, n_before: int, after: int, n_after: int, z: float = Z95) -> Interval:
    """Interval of share after - share before, for independent samples; each share's own interval is Wilson's.

    Where both were measured on the same prompts it errs on the wide side, as their outcomes then go together.
    """
    p, q = before / n_before, after / n_after
    (p_low, p_high), (q_low, q_high) = wilson(before, n_before, z), wilson(after, n_after, z)
    return (
        q - p - sqrt((q - q_low) ** 2 + (p_high - p) ** 2),
        q - p + sqrt((q_high - q) ** 2 + (p - p_low) ** 2),
    )
