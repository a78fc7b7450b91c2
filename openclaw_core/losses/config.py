"""The settings that the loss itself reads, under the names of the configuration tree and of ALGORITHM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openclaw_core.losses.errors import LossError

HintSelection = Literal["shortest", "token_optimal", "sequence_optimal", "random"]
SubsetMode = Literal["student", "teacher", "overlap"]
ShapedTurns = Literal["corrected", "opd_only", "plain"]


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Coefficients and clips of the hybrid loss. Raises LossError for a combination that has no gradient."""

    w_rl: float = 1.0
    """Weight of the GRPO term; 0 switches it off."""
    w_opd: float = 1.0
    """Weight of the distillation term; 0 switches it off, and no teacher scores are needed."""
    kl_coef: float = 0.01
    """Weight of the reference KL; 0 switches it off, and no reference log-probs are needed."""
    entropy_coef: float = 0.0
    """Only 0: the head's entropy is a metric without a gradient."""
    adv_diff_clip: float = 1.0
    """C, the bound of |ell_T - ell_old| in nats; 0 or less: no clip."""
    eps_lo: float = 0.2
    eps_hi: float = 0.28
    tis_clip: float = 2.0
    """C_tis, the cap of the engine-trainer weight; 0: no weight."""
    opd_center: bool = False
    """Subtract the weighted mean of delta over the support."""
    shaped_turns: ShapedTurns = "corrected"
    """What turns get whose mu is not the plain softmax: GRPO and KL with c_t, distillation only, or c_t = 1."""

    def __post_init__(self) -> None:
        if self.entropy_coef != 0:
            raise LossError(f"entropy_coef={self.entropy_coef}: an entropy bonus is not implemented; set it to 0")
        if not (self.w_rl > 0 or self.w_opd > 0 or self.kl_coef > 0):
            raise LossError("w_rl, w_opd and kl_coef are all 0: nothing would be trained; set at least one above 0")
