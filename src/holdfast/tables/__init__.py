"""Tables and bars: everything about them. Trains nothing."""
