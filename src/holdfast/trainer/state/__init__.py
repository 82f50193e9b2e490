"""The state of a run: snapshots taken and put back, what is durable, what is sound."""
