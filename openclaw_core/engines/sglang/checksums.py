"""What a server's own checksum of its weights proves about a publish.

/weights_checker with the action ``checksum`` (0.5.23; 0.5.10 has none) is over the server's parameters as it holds them, fused
and split over its ranks, so it cannot be compared with the published one. But in one server the same weights give the same one
and others another: two publishes of equal content must agree, two that differ must differ. So a server that answered 200 and
kept its old weights, or loaded something else the second time, is found. One that is wrong in the same way every time is not:
that shows in the parity probe.
"""

from __future__ import annotations

from openclaw_core.engines.protocol import EngineError
from openclaw_core.weights.publish import PublishedWeights

_REMEMBERED = 8
_HALVES = ("bfloat16", "float16")


class Checksums:
    """Of the last publishes into one server: published -> the server's own."""

    def __init__(self) -> None:
        self._own: dict[str, str] = {}

    def compare(self, weights: PublishedWeights, own: str | None) -> None:
        """Take one more publish in; ``own`` is None where the server has no checksum. Raises EngineError: see above."""
        if own is None:
            return
        published = weights.checksum
        # Weights sent in fp32 may differ and still be the same once the server has rounded them.
        exact = all(dtype in _HALVES for bucket in weights.buckets for dtype in bucket.dtypes)
        for other, theirs in self._own.items():
            same = other == published
            if same == (own == theirs) or not (same or exact):
                continue
            kind = "the same weights have" if same else "other weights have the same"
            raise EngineError(
                f"its checksum is {own[:12]}, and {kind} {theirs[:12]} (published {published[:12]}, {other[:12]})"
            )
        self._own.pop(published, None)
        self._own[published] = own
        while len(self._own) > _REMEMBERED:
            del self._own[next(iter(self._own))]
