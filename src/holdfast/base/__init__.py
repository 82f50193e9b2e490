"""Primitives that know nothing of runs: errors, files, locks, processes' names, units. Standard library and small packages only."""
