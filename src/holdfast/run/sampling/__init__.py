"""Which samples a step sees, and in which order. Pure: follows from seeds alone."""
