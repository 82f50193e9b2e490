"""Experiments with a run that has not begun: its model, rows and shapes under one change at a time."""
