"""The run's configuration: its fields, reading it, and the faults it may order."""
