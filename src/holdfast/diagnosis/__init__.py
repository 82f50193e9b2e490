"""Name the cause of an end, from logs and the book. Pure: no clock, no processes."""
