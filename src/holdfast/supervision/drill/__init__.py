"""Rehearse the worst on one's own machine: runs with faults in them, each compared with an undisturbed one."""
