"""Supervision of a trainer of ours: what the loop asks of it, the lab and the hands that do it, the way back to an earlier step."""
