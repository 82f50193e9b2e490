"""Logs of any program as lines and numbers."""
