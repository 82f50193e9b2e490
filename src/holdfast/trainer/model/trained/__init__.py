"""What of a model is trained: an adapter of one of PEFT's kinds, or weights of its own."""
