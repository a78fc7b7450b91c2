"""What a scorer says of one sample, as it travels between processes. Free of torch and megatron."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int32


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probs of a response of T tokens, with ``version``'s weights as the old policy; about 0.5 MB at T = 8,192, K = 4.

    A sample without a hint, and any sample with w_opd = 0, has K = 0.
    """

    sample_id: str
    version: int
    ids: Int32[np.ndarray, "T K"]
    """S_t; ids outside ``support`` are meaningless."""
    support: Bool[np.ndarray, "T K"]
    teacher_logp: Float32[np.ndarray, "T K"]
    """ell_T,c*"""
    old_logp: Float32[np.ndarray, "T K"]
    """The scorer's own ell_old at the same ids."""
    hint: Int32[np.ndarray, " T"]
    """c*(t)"""
    overlap: Int32[np.ndarray, " T"]
    """O[c*, t]"""
    ref_logp: Float32[np.ndarray, " T"] | None
    """ell_ref(y_t); None with kl_coef = 0."""
