"""Files as streams of rows: opened, cut into rows, losing none. Judges nothing."""
