"""A run in a terminal: progress, incidents, the summary."""
