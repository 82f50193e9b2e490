"""Tables: read in chunks, columns and rows judged, parted, scaled by the training part alone, kept as arrays that a trainer maps."""
