"""How a run of each kind of task is told of."""
