"""A run from its config to its report, and other people's commands: prepared, launched, supervised, finished. Touches no torch."""
