"""A run on paper: its folder, journals, plan, timeline. Starts no process."""
