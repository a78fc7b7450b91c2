"""When a run counts as ill, and what is done about it. What each rule means: openclaw_core/health/rules.py, docs/HEALTH.md."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import Field, model_validator

from openclaw_core.config.section import Section

Action = Literal["notify", "lower_w_opd", "pause", "stop"]


class Limit(Section):
    """Where a rule begins to speak. A rule's other half, its meaning, is not to be configured."""

    bound: float | None = Field(description="Beyond it is ill; null: the rule is off.")
    steps: int = Field(ge=1, le=1000, description="Steps in a row beyond the bound, until it is said.")


class Limits(Section):
    """A limit for each rule. The defaults are the healthy ranges of ALGORITHM 10; a preset says what differs."""

    grad_norm_high: Limit = Limit(bound=10, steps=3)
    grad_norm_diverging: Limit = Limit(bound=50, steps=3)
    engine_parity_high: Limit = Limit(bound=0.15, steps=3)
    engine_parity_growing: Limit = Limit(bound=3, steps=3)
    engine_parity_lost: Limit = Limit(bound=0.5, steps=3)
    logprob_diff_high: Limit = Limit(bound=0.15, steps=3)
    shaped_logprob_diff_growing: Limit = Limit(bound=2, steps=3)
    tis_low: Limit = Limit(bound=0.7, steps=3)
    tis_clipped: Limit = Limit(bound=0.2, steps=3)
    opd_strong: Limit = Limit(bound=0.6, steps=3)
    opd_saturated: Limit = Limit(bound=0.95, steps=5)
    overlap_falling: Limit = Limit(bound=0.75, steps=5)
    kl_high: Limit = Limit(bound=1, steps=3)
    kl_diverging: Limit = Limit(bound=4, steps=3)
    entropy_collapsing: Limit = Limit(bound=0.4, steps=5)
    entropy_exploding: Limit = Limit(bound=3, steps=3)
    response_growing: Limit = Limit(bound=2, steps=3)
    response_shrinking: Limit = Limit(bound=0.4, steps=3)
    truncated_high: Limit = Limit(bound=0.2, steps=3)
    reward_collapsing: Limit = Limit(bound=0.75, steps=5)
    no_signal_high: Limit = Limit(bound=0.5, steps=3)
    judge_unreadable: Limit = Limit(bound=0.3, steps=2)
    step_skipped: Limit = Limit(bound=0, steps=1)

    @model_validator(mode="before")
    @classmethod
    def _over_defaults(cls, given: Any) -> object:
        """A preset that gives a bound alone keeps the rule's steps."""
        if not isinstance(given, dict):
            return given
        limits = cast(dict[str, Any], given)
        defaults = {name: field.default.model_dump() for name, field in cls.model_fields.items()}
        return {
            name: defaults.get(name, {}) | cast(dict[str, Any], limit) if isinstance(limit, dict) else limit
            for name, limit in limits.items()
        }


class HealthConfig(Section):
    """Rules over the metrics of the steps, and what happens when one speaks."""

    limits: Limits = Field(default_factory=Limits)
    clear_after: int = Field(
        default=3, ge=1, le=1000, description="Steps in a row within the bound, after which a finding is withdrawn."
    )
    on_warn: Action = Field(
        default="notify",
        description="When a warning is new. notify: tell, and go on. lower_w_opd: and, of findings about OPD, halve loss.w_opd "
        "for the next step, step by step while one lasts. pause: and hold before the next step until somebody resumes. stop: "
        "and end the run, to be taken up by a retry.",
    )
    on_stop: Action = Field(default="stop", description="When a finding that says stop is new; as on_warn.")
    w_opd_floor: float = Field(default=0.1, gt=0, description="lower_w_opd does not go below this.")
    webhook_format: Literal["json", "slack", "feishu", "dingtalk"] = Field(
        default="json",
        description="What the address in OPENCLAW_HEALTH_WEBHOOK understands. json: the whole verdict.",
    )

    @property
    def lowers_w_opd(self) -> bool:
        """Whether a finding may change the loss."""
        return "lower_w_opd" in (self.on_warn, self.on_stop)

    def check_floor(self, w_opd: float) -> None:
        """Raises ValueError where ``w_opd`` could not be lowered."""
        if self.lowers_w_opd and w_opd <= self.w_opd_floor:
            raise ValueError(
                f"health.on_warn or on_stop is lower_w_opd, but loss.w_opd={w_opd:g} is not above "
                f"health.w_opd_floor={self.w_opd_floor:g}; lower the floor, or choose another action"
            )
