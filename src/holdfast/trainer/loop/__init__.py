"""The loop over steps, and what it watches on the way: memory, held-out rows, goals, other ranks."""
