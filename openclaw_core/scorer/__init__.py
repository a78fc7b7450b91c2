"""Forward-only scoring: the old policy, the hinted teacher and the start model on a sample's response (ALGORITHM 12)."""
