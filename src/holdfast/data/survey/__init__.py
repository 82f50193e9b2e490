"""What a pass over whole files finds, and the clean rows it writes."""
