"""Somebody else's training command: watched to its end, diagnosed, started again from its newest whole checkpoint."""
