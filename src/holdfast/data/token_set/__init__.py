"""The tokenised rows of a run: arrays in one file, what hangs together among them, what of them stands twice."""
