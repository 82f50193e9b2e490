"""Pure functions: diagnose, decide, plan. No clock, no files, no environment."""
