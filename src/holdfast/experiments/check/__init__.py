"""`holdfast check`: each item of the list people tick by hand, as an experiment with the run's own model, rows and shapes."""
