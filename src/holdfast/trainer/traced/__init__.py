"""A training step of shapes without data: what it allocates, in which order, and what for."""
