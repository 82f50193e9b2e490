"""What people look at: the terminal view and the report."""
