"""What of a run goes to its hosts."""

from __future__ import annotations

from openclaw_core.cluster.run_on_hosts import keys_inside
from openclaw_core.rundir import RunSecrets


def test_the_hubs_key_stays_on_the_launch_machine_and_the_others_go_along():
    keys = RunSecrets("api", "control", "ray", "server", {"ana": "sk-1"}, {"hub": "hf-1", "judge": "sk-2", "simulator": "sk-3"})
    inside = keys_inside(keys)
    assert inside.external_keys == {"judge": "sk-2", "simulator": "sk-3"}
    assert (inside.api_key, inside.control_token, inside.ray_token, inside.named_keys) == (
        "api",
        "control",
        "ray",
        {"ana": "sk-1"},
    )
