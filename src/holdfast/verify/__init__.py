"""Compare two models on the same rows and prompts, and say what the comparison can bear."""
