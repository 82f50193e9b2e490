"""What `data check` shows."""
