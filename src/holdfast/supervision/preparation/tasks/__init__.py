"""What is done before training, a file for each kind of task."""
