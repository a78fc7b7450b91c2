"""Hosts of a run simulated on this machine: network, SSH server and Docker engine are real, the rest is shared."""

from openclaw_core.cluster.simulation.checks import check_simulation, lacks
from openclaw_core.cluster.simulation.simulated import NAMES, HostState, Simulation

__all__ = ["NAMES", "HostState", "Simulation", "check_simulation", "lacks"]
