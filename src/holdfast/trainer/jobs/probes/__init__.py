"""Functional probes: small calculations whose right answer is known, each in a child, because a bad kernel crashes or hangs."""
