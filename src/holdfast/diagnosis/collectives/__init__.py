"""Dumps of torch's flight recorder: which rank did not enter which collective."""
