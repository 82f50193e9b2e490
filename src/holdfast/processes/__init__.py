"""Processes: started, watched, ended. What an end means is decided elsewhere."""
