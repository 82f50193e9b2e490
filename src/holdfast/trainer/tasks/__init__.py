"""What a step trains: one module per task, behind the `Task` protocol."""
