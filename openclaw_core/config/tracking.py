"""Which experiment trackers a run is shown in, besides TensorBoard, and whether they may use the network."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from openclaw_core.config.section import Section

TrackerName = Literal["wandb", "swanlab", "mlflow", "trackio"]


class TrackingConfig(Section):
    """Experiment trackers. The machine that drives the run tells them; docs/REPORT.md."""

    use: tuple[TrackerName, ...] = Field(
        default=(),
        description="Besides TensorBoard, which every run has. Each needs the extra of its name: openclaw-rl[wandb].",
    )
    project: str = Field(
        default="openclaw-rl", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="A run goes by its run id in it."
    )
    mode: Literal["offline", "online"] = Field(
        default="offline",
        description="offline: files below the run's tracking/, nothing leaves this machine. online: wandb and swanlab send to "
        "their servers, with the keys of their own environment variables.",
    )
    mlflow_uri: str | None = Field(
        default=None, pattern=r"^https?://[^@\s]+$", description="A tracking server, with mode online; None: a file of the run."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(set(self.use)) < len(self.use):
            raise ValueError(f"tracking.use={list(self.use)} names a tracker twice")
        if self.mlflow_uri is not None and self.mode == "offline":
            raise ValueError(
                f"tracking.mlflow_uri={self.mlflow_uri} is a server, and tracking.mode is offline; set it to online"
            )
        return self
