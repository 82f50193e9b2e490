"""One step: gradients of given samples at given weights, the finite check, one update; and the state it changes."""
