"""What `plan` shows."""
