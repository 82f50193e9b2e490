"""Optimizers over one block of memory, their state in named tensors. The learning rate schedule is in run/sampling/step_table.py."""
