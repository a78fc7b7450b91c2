"""A value that is sent with every publish and hardly ever changes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Packed(Generic[T]):
    """Pickled once, and unpickled once by each process that gets it: a few hundred small objects take milliseconds."""

    data: bytes

    @classmethod
    def of(cls, value: T) -> Packed[T]:
        """Pack an immutable value."""
        return cls(pickle.dumps(value))

    @property
    def value(self) -> T:
        """What was packed; the same object each time."""
        return _unpacked(self.data)


@lru_cache(maxsize=16)
def _unpacked(data: bytes) -> Any:
    return pickle.loads(data)
