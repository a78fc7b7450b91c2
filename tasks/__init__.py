"""Prefect tasks: one stage a file, each a thin call of openclaw_core."""
