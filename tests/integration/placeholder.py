"""An actor in place of a rank. A module of its own: each of its processes imports no more than this."""

import os
from typing import Any

HOST, CARDS = "PLACEHOLDER_HOST", "ASCEND_RT_VISIBLE_DEVICES"


class Placeholder:
    """It says where it is, and which NPU it was given."""

    def __init__(self, *_arguments: Any) -> None:
        pass

    def place(self) -> tuple[str, str]:
        return os.environ[HOST], os.environ[CARDS]
