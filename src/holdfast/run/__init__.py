"""A run on paper: its folder, journals, plan, timeline, snapshots and checkpoints. Starts no process."""
