"""Versions that a host and its image must have for NPUs: the one table that checks compare with.

What is in the image is also in image/ and docs/IMAGE.md; a test holds this table to them.
"""

from __future__ import annotations

import re

from openclaw_core.cluster.npu import Generation

GENERATION: Generation = "A2"
"""The image is built on CANN's 910b base: Atlas A2."""

DRIVER = (25, 3)
"""At least, on the host. SGLang's page for this CANN names 25.5, the NPU patches' guide 25.3.RC1; none names an older one."""

CANN = "8.5.0"

PACKAGES = {"torch": "2.8.0", "torch_npu": "2.8.0.post2", "sgl-kernel-npu": "2026.3.1"}
"""By the name that they are installed by."""

MODULES = {
    "megatron.core": ("0.16.0rc0", "3714d81d418c9f1bca4594fc35f9e8289f652862"),
    "mindspeed": ("0.14.1", "fc63de5c48426dd019c3b3f39e65f5bdf56e4086"),
    "sglang": ("0.5.10", None),
}
"""Version and, where it is taken from a repository, commit."""

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What uname calls a machine, and Docker."""


def driver_is_enough(version: str) -> bool:
    """Whether a driver's version, as in 25.5.0 or 25.3.rc1, is DRIVER or newer."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return tuple(numbers) >= DRIVER
