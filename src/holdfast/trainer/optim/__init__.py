"""Optimizers over one block of memory, their state in named tensors."""
