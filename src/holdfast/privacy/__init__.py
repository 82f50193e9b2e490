"""What must not leave a machine: secrets and a person's traces, found and taken out."""
