"""Processes beside a run that are no trainer: those that pass its steps to trackers and its news to a person, and what watches them."""
