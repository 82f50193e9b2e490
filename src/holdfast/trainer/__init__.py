"""The torch island: everything here runs in a child process (`python -m holdfast.trainer JOB`)."""
