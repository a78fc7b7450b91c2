"""What a run would do on every host, as data, text and JSON."""

from openclaw_core.cluster.dry_run.nouns import LAUNCH, Action, DryRun, HostLine
from openclaw_core.cluster.dry_run.plan import as_json, dry_run
from openclaw_core.cluster.dry_run.text import as_text, print_dry_run

__all__ = ["LAUNCH", "Action", "DryRun", "HostLine", "as_json", "as_text", "dry_run", "print_dry_run"]
