"""Rehearse the worst on one's own machine: runs with faults in them, each held against an undisturbed one."""
