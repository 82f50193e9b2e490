"""The state of a run as bytes: the shared-memory file, checkpoints, the parts of several ranks."""
