"""A run on paper: its folder, journals, timeline, snapshots and checkpoints. Starts no process."""
