"""What the stand-ins saw, in order. See tests/unit/test_accelerator.py for what they are, and what they cannot show."""

EVENTS: list[object] = []
