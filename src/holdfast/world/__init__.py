"""Hands: machine facts, processes, shared memory, checkpoints on disk."""
