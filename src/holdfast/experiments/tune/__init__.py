"""`holdfast tune`: climb from plain kernels to faster ones, one proven rung at a time."""
