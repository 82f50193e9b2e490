"""Too little memory: recognised, and dealt with inside the trainer."""
