"""What runs inside other people's training processes, in their Python."""
