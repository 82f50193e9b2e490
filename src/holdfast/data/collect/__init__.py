"""Rows from real use: what request logs, server logs, a Redis stream and shell histories hold, redacted and without repetitions."""
