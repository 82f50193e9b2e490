"""A run from its config to its report: prepared, launched, supervised, finished. Touches no torch."""
