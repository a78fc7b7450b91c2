"""env-check on hosts: what is asked of them (script, inside), what came back (facts), and what it means (rows, npu)."""

from openclaw_core.cluster.host_checks.facts import HostCheck
from openclaw_core.cluster.host_checks.looking import check_hosts, print_table, table

__all__ = ["HostCheck", "check_hosts", "print_table", "table"]
