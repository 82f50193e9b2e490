"""A run that is kept at a second place: its states sent there, fetched, and leased."""
