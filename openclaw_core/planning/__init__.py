"""What a preset needs, before anything starts: memory of every rank and engine, disk of every host. Free of torch.

Bytes are counted, not fitted: each formula names the tensors that it counts, and the tests compare them with the bytes of
the real objects and with the memory that a process really took.
"""

from openclaw_core.planning.errors import PlanError
from openclaw_core.planning.plan import Plan, make_plan

__all__ = ["Plan", "PlanError", "make_plan"]
