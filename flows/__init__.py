"""Prefect flows: the order of things. What is done is in openclaw_core."""
