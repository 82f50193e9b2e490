"""What a child process does besides training: standing by, trials, evaluation, probes. A file a job."""
