"""What a run needs before there are weights or a card: memory, time, settings."""
