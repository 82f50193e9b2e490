"""Memory arithmetic of a training step."""
