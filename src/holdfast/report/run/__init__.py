"""The report of a run: a training run of ours, or a command under supervision."""
