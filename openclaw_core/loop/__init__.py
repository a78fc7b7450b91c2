"""The training loop: the five verbs of a rollout step, the service that holds them, and the client that drives it."""

PHASES = ("collect", "score", "train", "publish", "report")
"""The verbs of a step, in order; each is one request of the control API."""
