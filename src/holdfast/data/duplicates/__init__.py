"""Which rows are the same or nearly: keys, repetitions, differences, parts of a set."""
