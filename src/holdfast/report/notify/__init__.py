"""Words to a person: when a run needs one, recovered or ended."""
